//! The clocks of processes, relative to that of process 0: every process counts nanoseconds from a moment of its own.
//!
//! Process 0 asks each of the others a few times what its clock says. The answer was given between question and answer; the middle of the
//! shortest round trip is the best estimate of that moment, wrong by at most half the round trip.

use annulus_comm::{Communicator, Label, P2pOp, RankHosts};
use annulus_trace::{Span, now};
use candle_core::{Device, Tensor};

use crate::{Result, TrainError};

/// How often the clock of a process is asked.
const ROUND_TRIPS: usize = 16;

/// One question to another process's clock and its answer, in nanoseconds.
#[derive(Clone, Copy, Debug)]
struct RoundTrip {
    /// When the question was sent, by process 0's clock.
    asked: u64,
    /// The answer: the other process's clock.
    said: u64,
    /// When the answer arrived, by process 0's clock.
    heard: u64,
}

impl RoundTrip {
    fn length(&self) -> u64 {
        self.heard.saturating_sub(self.asked)
    }

    /// How far the other process's clock is ahead, by this round trip.
    fn ahead(&self) -> i64 {
        self.said as i64 - self.asked.midpoint(self.heard) as i64
    }
}

/// By process, how many nanoseconds its clock is ahead of process 0's; on rank 0, nothing elsewhere. All ranks must call it; the first rank
/// of each process answers.
pub(crate) fn ahead(comm: &dyn Communicator, hosts: &RankHosts, step: u64) -> Result<Vec<i64>> {
    let mut ahead = vec![0];
    for process in 1..hosts.processes().len() {
        let first = hosts.ranks_of(process).start;
        let mut trips = Vec::new();
        for hop in 0..ROUND_TRIPS {
            let label = Label { step, pass: "clock", hop, layer: 0 };
            if comm.rank() == 0 {
                trips.push(ask(comm, label, first)?);
            } else if comm.rank() == first {
                answer(comm, label)?;
            }
        }
        ahead.extend(nearest(&trips));
    }
    Ok(if comm.rank() == 0 { ahead } else { Vec::new() })
}

/// How far the other clock is ahead, by the shortest round trip.
fn nearest(trips: &[RoundTrip]) -> Option<i64> {
    trips.iter().min_by_key(|trip| trip.length()).map(RoundTrip::ahead)
}

fn ask(comm: &dyn Communicator, label: Label, of: usize) -> Result<RoundTrip> {
    let asked = now();
    let question = P2pOp::Send { tensor: time(asked)?, to: of };
    let answer =
        comm.exchange(label, vec![question, P2pOp::Receive { from: of, form: None }])?.wait()?;
    let heard = now();
    let [answer] = &answer[..] else { return Err(unreadable()) };
    let said = answer.to_vec1::<i64>()?.first().copied().ok_or_else(unreadable)?;
    Ok(RoundTrip { asked, said: said as u64, heard })
}

fn answer(comm: &dyn Communicator, label: Label) -> Result<()> {
    comm.exchange(label, vec![P2pOp::Receive { from: 0, form: None }])?.wait()?;
    let answer = P2pOp::Send { tensor: time(now())?, to: 0 };
    comm.exchange(label, vec![answer])?.wait()?;
    Ok(())
}

/// Nanoseconds as a tensor, to be sent.
fn time(nanoseconds: u64) -> Result<Tensor> {
    Ok(Tensor::new(&[nanoseconds as i64], &Device::Cpu)?)
}

fn unreadable() -> TrainError {
    TrainError::Internal("a clock's answer is not a number".to_owned())
}

/// Spans by rank on one clock: that of process 0, 0 at the first span.
pub(crate) fn aligned(
    mut ranks: Vec<Vec<Span>>,
    ahead: &[i64],
    hosts: &RankHosts,
) -> Vec<Vec<Span>> {
    let ahead_of = |rank: usize| ahead.get(hosts.process_of(rank)).copied().unwrap_or_default();
    let there = |rank: usize, at: u64| at as i64 - ahead_of(rank);
    let begins = ranks.iter().enumerate();
    let begins = begins.flat_map(|(rank, spans)| spans.iter().map(move |span| (rank, span.begin)));
    let first = begins.map(|(rank, at)| there(rank, at)).min().unwrap_or_default();
    for (rank, spans) in ranks.iter_mut().enumerate() {
        for span in spans {
            (span.begin, span.end) =
                ((there(rank, span.begin) - first) as u64, (there(rank, span.end) - first) as u64);
        }
    }
    ranks
}

#[cfg(test)]
mod tests {
    use annulus_trace::Activity;

    use super::*;

    fn two(ranks: usize) -> RankHosts {
        let hosts: Vec<String> = ["left", "right"].map(str::to_owned).into();
        RankHosts::new(hosts, ranks)
    }

    #[test]
    fn the_quickest_round_trip_counts() {
        let trip = |asked, said, heard| RoundTrip { asked, said, heard };
        // 1000 ahead; the first answer takes long, in the last round trip both ways do.
        let trips = [trip(0, 1010, 500), trip(600, 1610, 620), trip(700, 1900, 1000)];
        assert_eq!(nearest(&trips), Some(1000));
        assert_eq!(nearest(&[trip(5000, 120, 5040)]), Some(-4900));
        assert_eq!(nearest(&[]), None);
    }

    #[test]
    fn spans_come_to_lie_on_one_clock() {
        let span =
            |begin, end| Span { begin, end, activity: Activity::Stage { name: "batch".into() } };
        let ranks = vec![vec![span(10, 20)], vec![span(15, 30)], vec![span(1012, 1040)], vec![]];
        let spans = |ranks: Vec<Vec<Span>>| -> Vec<Vec<(u64, u64)>> {
            let spans =
                ranks.iter().map(|spans| spans.iter().map(|span| (span.begin, span.end)).collect());
            spans.collect()
        };
        let found = spans(aligned(ranks.clone(), &[0, 1005], &two(4)));
        assert_eq!(found, [vec![(3, 13)], vec![(8, 23)], vec![(0, 28)], vec![]]);
        // A clock that started later reads less.
        let found = spans(aligned(ranks, &[0, -5000], &two(4)));
        assert_eq!(found[2], [(6002, 6030)]);
    }

    /// Threads of one process share a clock: the difference measured between them is 0, up to half a round trip, however long that takes.
    #[test]
    fn a_clock_is_not_ahead_of_itself() {
        use annulus_comm::threads::{Options, run};
        let deadline = std::time::Duration::from_secs(60);
        let options = Options { world: 4, deadline, stop: std::sync::Arc::default() };
        let rank = |comm: std::sync::Arc<dyn Communicator>| {
            let (comm, label) = (comm.as_ref(), Label { pass: "clock", ..Label::default() });
            let ahead = ahead(comm, &two(4), 1)?;
            let trip = if comm.rank() == 0 { Some(ask(comm, label, 2)?) } else { None };
            if comm.rank() == 2 {
                answer(comm, label)?;
            }
            Result::Ok((ahead, trip))
        };
        let ends = run(&options, rank).unwrap();
        assert_eq!((ends[0].0.len(), ends[0].0[0]), (2, 0));
        assert!(ends[1..].iter().all(|(ahead, _)| ahead.is_empty()));
        let trip = ends[0].1.unwrap();
        assert!(trip.ahead().unsigned_abs() <= trip.length() / 2 + 1, "{trip:?}");
    }
}
