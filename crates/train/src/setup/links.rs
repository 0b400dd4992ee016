//! Measured speeds of the ranks of several processes, and of the links between the processes: `strategy: auto` chooses by them under an MPI
//! launcher.

use std::sync::Arc;

use annulus_comm::{Communicator, RankHosts, World, threads};
use annulus_simulate::{Cluster, Level, Link, Rates};

use crate::Result;
use crate::setup::rates::{SpeedProbe, link};
use crate::setup::shared::{DEADLINE, cores_here, of_another, ranks_here, shared, unreached};

impl SpeedProbe {
    /// Measures the ranks of all processes at once. Every process is a node of the cluster; hosts with several processes are a level above
    /// them. A single process is measured by [`SpeedProbe::measure`].
    ///
    /// # Errors
    /// Processes that cannot share the ranks, one that is late or gone, and a kernel that cannot run it.
    pub fn measure_over(&self, world: &World, ranks: usize) -> Result<Cluster> {
        if world.processes() == 1 {
            return self.measure(ranks);
        }
        let here = ranks_here(world, ranks)?.len();
        let cores = cores_here(world, self.cores);
        // All begin together, and if one fails none goes on.
        world.gather(&[]).map_err(unreached)?;
        let own = shared(world, || SpeedProbe { cores, ..self.clone() }.measure(here))?;
        let rates = mean(world, own.rates)?;
        let cluster = Cluster {
            name: String::from("processes of this job"),
            nodes: world.processes(),
            devices_per_node: here,
            shared: true,
            ..own.clone().with_rates(rates, own.inside)
        };
        let ProcessPlacement { heads, neighbours, each } =
            ProcessPlacement::of(&world.rank_hosts(world.processes()));
        let far = (heads.len() > 1).then(|| among(world, &heads)).transpose()?;
        let near = neighbours.map(|pair| among(world, &pair)).transpose()?;
        Ok(match (near, far, each) {
            (Some(near), Some(far), Some(each)) => {
                let (name, devices) = (String::from("host"), each * here);
                let levels = vec![Level { name, devices, link: far }];
                Cluster { between: near, levels, ..cluster }
            }
            // If hosts have one process each, or different numbers, every link counts as one between hosts.
            (near, far, _) => Cluster { between: far.or(near).unwrap_or(own.between), ..cluster },
        })
    }
}

/// How processes are placed on hosts; the same in all of them.
#[derive(Debug, PartialEq, Eq)]
struct ProcessPlacement {
    /// The first process of every host.
    heads: Vec<usize>,
    /// The first two processes that share a host; `None`: no host has two.
    neighbours: Option<[usize; 2]>,
    /// How many processes every host has; `None`: the numbers differ.
    each: Option<usize>,
}

impl ProcessPlacement {
    /// The placement of processes on hosts, where `hosts` has processes in place of ranks.
    fn of(hosts: &RankHosts) -> ProcessPlacement {
        let hosts = hosts.hosts();
        let count = hosts.first().map(|first| first.ranks.len());
        ProcessPlacement {
            heads: hosts.iter().filter_map(|on| on.ranks.first().copied()).collect(),
            neighbours: hosts.iter().find_map(|on| on.ranks.first_chunk().copied()),
            each: count.filter(|count| hosts.iter().all(|on| on.ranks.len() == *count)),
        }
    }
}

/// The link around the ring of these processes; the same result in all of them.
fn among(world: &World, processes: &[usize]) -> Result<Link> {
    let options =
        threads::Options { world: world.processes(), deadline: DEADLINE, stop: Arc::default() };
    let member = |comm: Arc<dyn Communicator>| -> Result<Option<Link>> {
        let is_one = processes.contains(&comm.rank());
        let group = comm.split(label(), usize::from(is_one), comm.rank())?;
        is_one.then(|| link(group.as_ref())).transpose()
    };
    let own = world.run(&options, member)?.pop().flatten();
    let numbers = own.map_or([f64::NAN; 2], |link| [link.bandwidth, link.latency]);
    let all = numbers_of(world, &numbers)?;
    let [bandwidth, latency] = [0, 1].map(|index| all[processes[0]][index]);
    Ok(Link { bandwidth, latency })
}

/// The mean over processes of their `own` rates.
fn mean(world: &World, own: Rates) -> Result<Rates> {
    let all = numbers_of(world, &[own.forward, own.backward, own.products])?;
    let of = |index: usize| all.iter().map(|one| one[index]).sum::<f64>() / all.len() as f64;
    Ok(Rates { forward: of(0), backward: of(1), products: of(2), ..own })
}

/// Gathers the numbers of every process, by process.
fn numbers_of(world: &World, own: &[f64]) -> Result<Vec<Vec<f64>>> {
    let bytes: Vec<u8> = own.iter().flat_map(|number| number.to_le_bytes()).collect();
    read(&world.gather(&bytes).map_err(unreached)?, own.len())
}

/// Reads `count` numbers from each process; one that says anything else has failed and is elsewhere.
fn read(said: &[Vec<u8>], count: usize) -> Result<Vec<Vec<f64>>> {
    let numbers = |said: &Vec<u8>| {
        let (numbers, rest) = said.as_chunks();
        let is_whole = numbers.len() == count && rest.is_empty();
        let numbers = numbers.iter().map(|bytes| f64::from_le_bytes(*bytes)).collect();
        if is_whole { Ok(numbers) } else { Err(of_another()) }
    };
    said.iter().map(numbers).collect()
}

fn label() -> annulus_comm::Label {
    annulus_comm::Label { pass: "measuring", ..Default::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hosts(names: &str) -> ProcessPlacement {
        let names: Vec<String> = names.split(' ').map(str::to_owned).collect();
        let processes = names.len();
        ProcessPlacement::of(&RankHosts::new(names, processes))
    }

    #[test]
    fn hosts_are_even_only_where_all_have_as_many_processes() {
        let of = |heads: &[usize], neighbours, each| ProcessPlacement {
            heads: heads.to_vec(),
            neighbours,
            each,
        };
        assert_eq!(hosts("a a b b"), of(&[0, 2], Some([0, 1]), Some(2)));
        assert_eq!(hosts("a b c"), of(&[0, 1, 2], None, Some(1)));
        // As many processes as three hosts with two each would have.
        assert_eq!(hosts("a a b c c c"), of(&[0, 2, 3], Some([0, 1]), None));
        assert_eq!(hosts("a b b"), of(&[0, 1], Some([1, 2]), None));
    }

    #[test]
    fn a_process_that_says_no_numbers_has_failed() {
        let bytes: Vec<u8> = [1.0_f64, 2.0].iter().flat_map(|one| one.to_le_bytes()).collect();
        assert_eq!(read(&[bytes.clone(), bytes.clone()], 2).unwrap(), [[1.0, 2.0]; 2]);
        for other in [&[][..], &bytes[..8], &bytes[..15]] {
            let error = read(&[other.to_vec(), bytes.clone()], 2).expect_err("too few");
            assert!(error.is_of_another(), "{error}");
        }
    }
}
