//! What `Metered` counts.

use std::thread::sleep;
use std::time::Duration;

use annulus_comm::{Communicator, Flow, Label, Metered, RankHosts, Reduce, Traffic};
use candle_core::{DType, Tensor};

use crate::support::{on, receive, send, tensor};

/// How late a rank comes, and half of it is many times as long as a rank waits for a core on a busy machine.
const LATE: Duration = Duration::from_secs(1);

fn at(pass: &'static str) -> Label {
    Label { pass, ..Label::default() }
}

/// `count` elements of four bytes.
fn floats(count: usize) -> Tensor {
    tensor(&vec![1.0; count], DType::F32)
}

#[test]
fn bytes_are_what_was_handed_over() {
    let all = on(3, |comm| {
        let comm = Metered::new(comm);
        let rank = comm.rank();
        let parts = || vec![floats(2), floats(2), floats(2)];
        let next = (rank + 1) % 3;
        let moves = vec![
            send(&floats(10), next),
            send(&tensor(&[1.0; 3], DType::BF16), next),
            send(&floats(1), rank),
            receive((rank + 2) % 3),
            receive((rank + 2) % 3),
            receive(rank),
        ];
        comm.exchange(at("exchange"), moves)?.wait()?;
        comm.all_reduce(at("all reduce"), &floats(100), Reduce::Sum)?;
        comm.reduce_scatter(at("reduce scatter"), parts())?;
        comm.all_gather(at("all gather"), &floats(rank))?;
        comm.broadcast(at("broadcast"), Some(&floats(5)), 2)?;
        comm.barrier(at("barrier"))?;
        let pair = comm.split(at("split"), usize::from(rank == 2), 0)?;
        pair.all_reduce(at("all reduce"), &floats(7), Reduce::Max)?;
        comm.progress()?;
        let traffic = comm.take();
        assert_eq!(comm.take(), Traffic::default(), "it starts again from zero");
        Ok(traffic)
    });
    for (rank, traffic) in all.into_iter().enumerate() {
        let mut wanted = vec![
            ("all gather", 4 * rank as u64),
            ("all reduce", 4 * 107),
            ("broadcast", if rank == 2 { 20 } else { 0 }),
            ("exchange", 40 + 6 + 4),
            ("reduce scatter", 4 * 6),
        ];
        wanted.retain(|&(_, bytes)| bytes > 0);
        assert_eq!(traffic.bytes.into_iter().collect::<Vec<_>>(), wanted, "rank {rank}");
    }
}

#[test]
fn waiting_is_counted_where_a_peer_is_late() {
    let all = on(4, |comm| {
        let comm = Metered::new(comm);
        // Ranks 1 and 3 are a group of their own, in which they are 0 and 1.
        let group = comm.split(at("split"), comm.rank() % 2, 0)?;
        comm.take();
        match comm.rank() {
            1 => {
                let moves = vec![receive(0), receive(1), send(&floats(1), 0)];
                group.exchange(at("forward"), moves)?.wait()?;
            }
            3 => {
                sleep(LATE);
                group.exchange(at("forward"), vec![send(&floats(1), 0)])?.wait()?;
                sleep(LATE);
            }
            _ => {}
        }
        let alone = comm.take();
        comm.barrier(at("barrier"))?;
        Ok((alone, comm.take()))
    });
    let (exchanged, at_barrier) = &all[1];
    assert!(exchanged.waiting > LATE / 2);
    assert!(at_barrier.waiting > LATE / 2);
    assert!(all[3].1.waiting < LATE / 2);
}

#[test]
fn what_goes_between_hosts_is_counted_apart() {
    let all = on(4, |comm| {
        // Ranks 0 and 1 on one host, 2 and 3 on another.
        let hosts: Vec<String> = ["left", "right"].map(str::to_owned).into();
        let comm = Metered::at(comm, RankHosts::new(hosts, 4));
        let rank = comm.rank();
        let pair = comm.split(at("split"), rank / 2, 0)?;
        let across = comm.split(at("split"), rank % 2, 0)?;
        comm.take();
        pair.all_reduce(at("sum"), &floats(10), Reduce::Sum)?;
        across.all_reduce(at("sum"), &floats(100), Reduce::Sum)?;
        comm.barrier(at("barrier"))?;
        let collectives = comm.take();
        if rank == 2 {
            sleep(LATE);
        }
        let (before, behind) = ((rank + 3) % 4, (rank + 1) % 4);
        let moves = vec![send(&floats(1000), behind), receive(before)];
        comm.exchange(at("forward"), moves)?.wait()?;
        Ok((collectives, comm.take()))
    });
    for (rank, (collectives, moved)) in all.iter().enumerate() {
        assert_eq!(collectives.between_hosts.bytes, 400, "rank {rank}");
        assert_eq!(collectives.within_host().bytes, 40, "rank {rank}");
        let between = if rank % 2 == 1 { 4000 } else { 0 };
        assert_eq!(moved.between_hosts.bytes, between, "rank {rank}");
        assert_eq!(moved.within_host().bytes + between, moved.total().bytes, "rank {rank}");
        let Flow { waiting, .. } = moved.within_host();
        assert_eq!(waiting + moved.between_hosts.waiting, moved.waiting, "rank {rank}");
    }
    // Rank 3 waits for its neighbour on the same host; rank 0 for rank 3, which is not late.
    assert!(all[3].1.within_host().waiting > LATE / 2);
    assert!(all[3].1.between_hosts.waiting < LATE / 2 && all[0].1.waiting < LATE / 2);
}
