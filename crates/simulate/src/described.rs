//! Devices and what joins them.

use std::collections::BTreeMap;
use std::ops::Range;

use annulus_experiment::{Apart, Experiment, Host, Memory, Replica};
use annulus_machine::Core;
use annulus_plan::Group;
use annulus_sequence::Pass;
use annulus_yaml::Absent::{Is, Required};
use annulus_yaml::Kind::Quantity;
use annulus_yaml::{Unit, section};

/// Devices in nodes, and the links between them.
///
/// Every device sends and receives at once, each at its link's bandwidth: full duplex. Ranks sit on
/// devices in order; `mesh.order` says which ranks are neighbours.
#[derive(Clone, Debug, PartialEq)]
pub struct Cluster {
    /// What it is called.
    pub name: String,
    /// Nodes.
    pub nodes: usize,
    /// Devices per node.
    pub devices_per_node: usize,
    /// Bytes of memory per device; `None`: not limited.
    pub memory: Option<u64>,
    /// Bytes of them that a plan may take; `None`: not limited.
    pub budget: Option<u64>,
    /// Cores of a device that is a processor.
    pub cores: usize,
    /// What such a core computes with.
    pub core: Core,
    /// What a device computes.
    pub rates: Rates,
    /// From device to device within a node.
    pub inside: Link,
    /// From node to node.
    pub between: Link,
    /// Groups of nodes that slower links join, the smallest first.
    pub levels: Vec<Level>,
    /// From a device to where what is offloaded waits, and back; `None`: nobody has said.
    pub offload: Option<Link>,
    /// Whether the devices of a node share its links to other nodes, instead of having their own.
    pub shared: bool,
    /// Whether devices of a node that have less to do help those that have more, as ranks on the cores of one process do.
    pub helping: bool,
    /// How many times longer a device takes than the others, by its number; 1 where it is absent.
    pub slowdown: BTreeMap<usize, f64>,
    /// The devices that links and walks count, by number: all, or those of the ranks of one replica, by their places.
    pub seen: Replica,
}

/// Every device is seen.
pub(crate) const ALL: Replica = Replica { first: 0, step: 1, places: usize::MAX };

/// What a device achieves, in floating-point operations per second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rates {
    /// Attention forward: of `4 · head_dim` operations per visible pair and query head.
    pub forward: f64,
    /// Attention backward: of `10 · head_dim` operations (five products instead of two).
    pub backward: f64,
    /// Products of activations with weights.
    pub products: f64,
    /// Rows and columns of the tiles of scores that attention computes whole or skips whole. Of a
    /// block whose mask cuts through it, half a tile per row is computed in vain.
    pub tile: usize,
}

impl Rates {
    /// Of attention in a pass.
    pub(crate) fn attention(self, pass: Pass) -> f64 {
        match pass {
            Pass::Forward => self.forward,
            Pass::Backward => self.backward,
        }
    }
}

section! {
    /// One way from one device to another.
    #[derive(Clone, Copy, Debug, PartialEq)]
    pub struct Link {
        bandwidth: f64 = Quantity(Unit::Bandwidth), Required, "bytes per second, one way";
        latency: f64 = Quantity(Unit::Time), Is("0"), "time until the first byte is there";
    }
}

/// Nodes that are nearer to each other than to others: of a rail, or a pod.
#[derive(Clone, Debug, PartialEq)]
pub struct Level {
    /// What such a group is called.
    pub name: String,
    /// Devices of a group: neighbours, as those of a node are.
    pub devices: usize,
    /// From a device to those of other groups.
    pub link: Link,
}

/// Attention of one thread in f32, operations per second: 60 % of what the multiply-and-add units
/// of a Zen 4 core do (`cargo xtask bench attention`).
const THREAD: f64 = 65e9;
/// Products with weights, likewise.
const THREAD_PRODUCTS: f64 = 75e9;
/// Bytes per second that all threads of a machine move through its memory.
const MEMORY: f64 = 40e9;
/// Bytes per second that a machine's disk takes, or gives, as one bought lately does.
const DISK: f64 = 1e9;
/// What it takes a thread to wake up, seconds.
const WAKING: f64 = 30e-6;
/// Rows of a block of the CPU's kernel by which its tiles end.
const THREAD_TILE: usize = 32;

impl Cluster {
    /// Devices of all nodes.
    pub fn devices(&self) -> usize {
        self.nodes.saturating_mul(self.devices_per_node)
    }

    /// Whether it has so many of the devices that are seen.
    pub(crate) fn has(&self, devices: usize) -> bool {
        devices == 0 || self.seen.rank(devices - 1) < self.devices()
    }

    /// The node of a device.
    pub fn node_of(&self, device: usize) -> usize {
        self.seen.rank(device) / self.devices_per_node
    }

    /// The devices of a node: neighbours, of those that are seen.
    pub(crate) fn devices_of(&self, node: usize) -> Range<usize> {
        let devices = self.devices_per_node;
        self.seen.places_in(node * devices..(node + 1) * devices)
    }

    /// The first of the devices that are in one group with this one, where groups have so many.
    pub(crate) fn first_beside(&self, device: usize, group: usize) -> usize {
        let first = self.seen.rank(device) / group * group;
        self.seen.places_in(first..first + group).start
    }

    /// The same as a replica sees it: its devices are those of its ranks, by their places. A node's link that devices share is
    /// shared with the ranks of other replicas there, which send at the same time.
    pub(crate) fn of_replica(&self, seen: Replica) -> Cluster {
        let mut cluster = Cluster { seen, ..self.clone() };
        if self.shared && seen.step > 1 {
            let replicas = seen.step.min(self.devices_per_node) as f64;
            let levels = cluster.levels.iter_mut().map(|level| &mut level.link);
            levels.chain([&mut cluster.between]).for_each(|link| link.bandwidth /= replicas);
        }
        cluster
    }

    /// Where the slow device of this number is in its replica of so many ranks, of which this cluster is what one sees.
    pub(crate) fn place_of_slow(&self, device: usize, ranks: usize) -> Option<usize> {
        (ranks > 0).then(|| device / self.seen.step % ranks)
    }

    /// What joins two devices.
    pub fn link(&self, from: usize, to: usize) -> Link {
        self.link_of(self.level(from, to))
    }

    /// How far apart two devices are: 0 within a node, 1 between nodes, more between groups of nodes.
    pub(crate) fn level(&self, from: usize, to: usize) -> usize {
        let [from, to] = [from, to].map(|device| self.seen.rank(device));
        self.groups().take_while(|devices| from / devices != to / devices).count()
    }

    /// What joins devices so far apart.
    pub(crate) fn link_of(&self, level: usize) -> Link {
        match level {
            0 => self.inside,
            1 => self.between,
            above => self.levels[above - 2].link,
        }
    }

    /// Whether links take no time.
    pub(crate) fn is_instant(&self) -> bool {
        self.inside.bandwidth.is_infinite()
    }

    /// The link of a ring of the first `world` devices that joins those furthest apart, whichever of them are seen.
    pub fn ring_link(&self, world: usize) -> Link {
        self.link_of(self.groups().take_while(|devices| world > *devices).count())
    }

    /// The link of a ring of such ranks that joins those furthest apart, whichever devices are seen; every rank stands for `each`. Where
    /// a node's devices share its link, those between neighbours of the ring send at the same time.
    pub(crate) fn ring_of(&self, group: Group, each: usize) -> Link {
        let [from, to] = group.ends(each);
        let level = self.groups().take_while(|devices| from / devices != to / devices).count();
        let mut link = self.link_of(level);
        if self.shared && level > 0 {
            let sharers = |step: usize| step.min(self.devices_per_node) as f64;
            link.bandwidth *= sharers(self.seen.step) / sharers(group.step * each);
        }
        link
    }

    /// Devices of a node, then of the groups of every level.
    pub(crate) fn groups(&self) -> impl Iterator<Item = usize> {
        [self.devices_per_node].into_iter().chain(self.levels.iter().map(|level| level.devices))
    }

    /// The same of the devices that are seen, where all such groups have as many of them.
    pub(crate) fn inner(&self) -> impl Iterator<Item = usize> {
        let step = self.seen.step;
        self.groups().filter(move |group| group.is_multiple_of(step)).map(move |group| group / step)
    }

    /// How many times longer than the others a device takes.
    pub fn slowdown_of(&self, device: usize) -> f64 {
        self.slowdown.get(&self.seen.rank(device)).copied().unwrap_or(1.0)
    }

    /// The experiment on these devices: their cores, what those compute with, and their memory.
    pub(crate) fn place(&self, mut experiment: Experiment) -> Experiment {
        let ranks = experiment.mesh.ranks();
        let apart = (!self.helping).then_some(Apart { ranks, memory: self.memory });
        let (core, workers) = (self.core, self.cores);
        experiment.host = Host { core, workers, apart, ..experiment.host };
        experiment
    }

    /// The same devices with what plans may take of their memory, as `memory:` says.
    pub(crate) fn budgeted(&self, memory: &Memory) -> Cluster {
        // What ranks share is shared out already.
        let budget = if self.helping { self.memory } else { memory.of_device(self.memory) };
        Cluster { budget, ..self.clone() }
    }

    /// The same devices with links that take no time: what remains is computing and waiting.
    #[must_use]
    pub fn without_links(&self) -> Cluster {
        let instant = Link { bandwidth: f64::INFINITY, latency: 0.0 };
        let offload = self.offload.map(|_| instant);
        let mut cluster = Cluster { inside: instant, between: instant, offload, ..self.clone() };
        cluster.levels.iter_mut().for_each(|level| level.link = instant);
        cluster
    }

    /// This machine: `ranks` threads over `cores` cores that hand blocks over through memory.
    /// Rates are typical ones; [`Cluster::with_rates`] puts measured ones in their place.
    pub fn threads(ranks: usize, cores: usize) -> Cluster {
        let (ranks, cores) = (ranks.max(1), cores.max(1));
        let share = cores as f64 / ranks as f64;
        let memory = Link { bandwidth: MEMORY / ranks as f64, latency: WAKING };
        Cluster {
            name: String::from("threads of this machine"),
            nodes: 1,
            devices_per_node: ranks,
            memory: None,
            budget: None,
            cores: 1,
            core: Core::here(),
            rates: Rates {
                forward: THREAD * share,
                backward: THREAD * share,
                products: THREAD_PRODUCTS * share,
                tile: THREAD_TILE,
            },
            inside: memory,
            between: memory,
            levels: Vec::new(),
            offload: Some(Link { bandwidth: DISK / ranks as f64, latency: 0.0 }),
            shared: false,
            helping: true,
            slowdown: BTreeMap::new(),
            seen: ALL,
        }
    }

    /// The same cluster with what was measured of a device.
    #[must_use]
    pub fn with_rates(self, rates: Rates, inside: Link) -> Cluster {
        Cluster { rates, inside, ..self }
    }
}
