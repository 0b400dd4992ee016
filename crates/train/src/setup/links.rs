//! What the ranks of several processes achieve, and the links between those: what `strategy: auto` chooses by
//! where a launcher of MPI started them.

use std::sync::Arc;

use annulus_comm::{Communicator, World, threads};
use annulus_simulate::{Cluster, Level, Link, Rates};

use crate::Result;
use crate::run::given::here;
use crate::setup::rates::{DEADLINE, Sample, link};
use crate::setup::shared::unreached;

impl Sample {
    /// The ranks of all processes, measured in all at once: every process is a node of the cluster; hosts that have several are a
    /// level above it. Of one process as [`Sample::measure`].
    ///
    /// # Errors
    /// Processes that cannot share the ranks, or one that is late or gone; when the kernel cannot run the sample.
    pub fn measure_over(&self, world: &World, ranks: usize) -> Result<Cluster> {
        if world.processes() == 1 {
            return self.measure(ranks);
        }
        let here = here(world, ranks)?.len();
        let of_host = world.beside();
        let cores = annulus_machine::share(self.cores, of_host.len());
        // All begin together.
        world.gather(&[]).map_err(unreached)?;
        let own = Sample { cores, ..self.clone() }.measure(here)?;
        let rates = mean(world, own.rates)?;
        let cluster = Cluster {
            name: String::from("processes of this job"),
            nodes: world.processes(),
            devices_per_node: here,
            shared: true,
            ..own.clone().with_rates(rates, own.inside)
        };
        let heads = first_of_hosts(world);
        let far = (heads.len() > 1).then(|| among(world, &heads)).transpose()?;
        let near = neighbours(world).map(|pair| among(world, &pair)).transpose()?;
        Ok(match (near, far) {
            (Some(near), Some(far)) if world.processes() == heads.len() * of_host.len() => {
                let (name, devices) = (String::from("host"), of_host.len() * here);
                let levels = vec![Level { name, devices, link: far }];
                Cluster { between: near, levels, ..cluster }
            }
            // Where hosts have one process each, or differ in how many they have, every link is as slow as those between hosts.
            (near, far) => Cluster { between: far.or(near).unwrap_or(own.between), ..cluster },
        })
    }
}

/// The first process of every host.
fn first_of_hosts(world: &World) -> Vec<usize> {
    let hosts = world.hosts();
    let is_first = |process: &usize| *process == 0 || hosts[*process] != hosts[*process - 1];
    (0..world.processes()).filter(is_first).collect()
}

/// Two processes of one host, the first such ones.
fn neighbours(world: &World) -> Option<Vec<usize>> {
    let hosts = world.hosts();
    let first = (1..hosts.len()).find(|process| hosts[*process] == hosts[*process - 1])?;
    Some(vec![first - 1, first])
}

/// The link around the ring of these processes; the same number in all.
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

/// The mean over processes.
fn mean(world: &World, own: Rates) -> Result<Rates> {
    let all = numbers_of(world, &[own.forward, own.backward, own.products])?;
    let of = |index: usize| all.iter().map(|one| one[index]).sum::<f64>() / all.len() as f64;
    Ok(Rates { forward: of(0), backward: of(1), products: of(2), ..own })
}

/// What every process says, by process.
fn numbers_of(world: &World, own: &[f64]) -> Result<Vec<Vec<f64>>> {
    let bytes: Vec<u8> = own.iter().flat_map(|number| number.to_le_bytes()).collect();
    let all = world.gather(&bytes).map_err(unreached)?;
    let numbers = |said: &Vec<u8>| {
        let (numbers, _) = said.as_chunks();
        numbers.iter().map(|bytes| f64::from_le_bytes(*bytes)).collect()
    };
    Ok(all.iter().map(numbers).collect())
}

fn label() -> annulus_comm::Label {
    annulus_comm::Label { pass: "measuring", ..Default::default() }
}
