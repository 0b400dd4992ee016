//! A cluster: devices and the links between them.

use std::collections::BTreeMap;
use std::ops::Range;

use annulus_experiment::{ClusterDevices, Experiment, Host, Memory, Mesh, OffloadSpace, Replica};
use annulus_machine::Core;
use annulus_plan::Group;
use annulus_sequence::Pass;
use annulus_yaml::Absent::{Is, Required};
use annulus_yaml::Kind::Quantity;
use annulus_yaml::{Unit, section};

/// Devices in nodes, and the links between them.
///
/// Every device sends and receives at the same time, each at its link's bandwidth: full duplex. Ranks are on devices in order; `mesh.order`
/// says which ranks are neighbours.
#[derive(Clone, Debug, PartialEq)]
pub struct Cluster {
    /// The cluster's name.
    pub name: String,
    /// The number of nodes.
    pub nodes: usize,
    /// Devices per node.
    pub devices_per_node: usize,
    /// Bytes of memory per device; `None`: not limited.
    pub memory: Option<u64>,
    /// Bytes of each device's memory that a plan may use; `None`: not limited.
    pub budget: Option<u64>,
    /// Whether devices are GPUs; otherwise they are processors.
    pub are_gpus: bool,
    /// Cores per device, where devices are processors.
    pub cores: usize,
    /// The caches and vector instructions of such a core.
    pub core: Core,
    /// The speed of a device.
    pub rates: Rates,
    /// The peak of a device by its data sheet, operations per second; `None`: not described.
    pub peak: Option<f64>,
    /// The link between devices of a node.
    pub inside: Link,
    /// The link between nodes.
    pub between: Link,
    /// Groups of nodes joined by slower links, the smallest first.
    pub levels: Vec<Level>,
    /// The link to where is offloaded, and back; `None`: not described.
    pub offload: Option<Link>,
    /// The number of neighbouring devices that share this link, those that have a rank.
    pub offload_sharers: usize,
    /// Bytes of a node's memory or disk for offloading; `None`: not limited.
    pub offload_memory: Option<u64>,
    /// Whether the devices of a node share its link to other nodes, instead of each having one.
    pub shared: bool,
    /// Whether devices of a node with less to do help the others, as ranks on the cores of one process do.
    pub helping: bool,
    /// How many times slower a device is than the others, by its number; 1 where it is absent.
    pub slowdown: BTreeMap<usize, f64>,
    /// The devices that links and walks count: all, or those of one replica's ranks, by place.
    pub seen: Replica,
}

/// All devices of a cluster.
pub(crate) const ALL: Replica = Replica { first: 0, step: 1, places: usize::MAX };

/// The speed of a device, in floating-point operations per second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rates {
    /// Attention forward, counting `4 · head_dim` operations per visible pair and query head.
    pub forward: f64,
    /// Attention backward, counting `10 · head_dim` operations (five products instead of two).
    pub backward: f64,
    /// Products of activations with weights.
    pub products: f64,
    /// Rows and columns of the tiles of scores that attention computes whole or skips whole. Where the mask cuts through a block, half a
    /// tile per row is computed in vain.
    pub tile: usize,
}

impl Rates {
    /// The speed of attention in a pass.
    pub(crate) fn attention(self, pass: Pass) -> f64 {
        match pass {
            Pass::Forward => self.forward,
            Pass::Backward => self.backward,
        }
    }
}

section! {
    /// A link in one direction, from one device to another.
    #[derive(Clone, Copy, Debug, PartialEq)]
    pub struct Link {
        bandwidth: f64 = Quantity(Unit::Bandwidth), Required, "bytes per second, one way";
        latency: f64 = Quantity(Unit::Time), Is("0"), "time until the first byte is there";
    }
}

/// What messages of a ring pass.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Ring {
    /// The slowest link.
    pub(crate) link: Link,
    /// Which of a device's ports leads to it: 0 within the node, 1 to other nodes.
    pub(crate) port: usize,
}

/// A level of the network: groups of nodes that are closer to each other than to others, as a rail or a pod.
#[derive(Clone, Debug, PartialEq)]
pub struct Level {
    /// The name of a group of this level.
    pub name: String,
    /// Devices per group, which are neighbours as those of a node are.
    pub devices: usize,
    /// The link from a device to other groups of this level.
    pub link: Link,
}

/// Attention of one thread in f32, operations per second: 60 % of what the multiply-and-add units
/// of a Zen 4 core do (`cargo xtask bench attention`).
const THREAD: f64 = 65e9;
/// Products with weights of one thread, operations per second, as [`THREAD`].
const THREAD_PRODUCTS: f64 = 75e9;
/// Bytes per second that all threads of a machine move through its memory.
const MEMORY: f64 = 40e9;
/// Bytes per second of a recent disk, in each direction.
const DISK: f64 = 1e9;
/// Seconds that a thread takes to wake up.
const WAKING: f64 = 30e-6;
/// Rows of a block of the CPU's kernel, at which its tiles end.
const THREAD_TILE: usize = 32;

impl Cluster {
    /// The number of devices of all nodes.
    pub fn devices(&self) -> usize {
        self.nodes.saturating_mul(self.devices_per_node)
    }

    /// Whether the cluster, as seen, has this many devices.
    pub(crate) fn has(&self, devices: usize) -> bool {
        devices == 0 || self.seen.rank(devices - 1) < self.devices()
    }

    /// The number of a device's node.
    pub fn node_of(&self, device: usize) -> usize {
        self.seen.rank(device) / self.devices_per_node
    }

    /// The seen devices of a node, which are neighbours.
    pub(crate) fn devices_of(&self, node: usize) -> Range<usize> {
        let devices = self.devices_per_node;
        self.seen.places_in(node * devices..(node + 1) * devices)
    }

    /// The first device of the group of `group` devices that `device` is in.
    pub(crate) fn first_beside(&self, device: usize, group: usize) -> usize {
        let first = self.seen.rank(device) / group * group;
        self.seen.places_in(first..first + group).start
    }

    /// The cluster as a replica of `mesh` sees it: its devices are those of the replica's ranks, by place, each as slow as the slowest of
    /// the tensor-parallel ranks there, which wait for each other.
    pub(crate) fn of_replica(&self, mesh: &Mesh, replica: usize) -> Cluster {
        let slowdown = self.slowest_of_every(mesh.tensor);
        Cluster { slowdown, ..self.seeing(mesh.replica(replica)) }
    }

    /// The cluster with the devices of `seen` alone. A node's link that devices share is also shared with the ranks of other replicas there,
    /// which send at the same time.
    pub(crate) fn seeing(&self, seen: Replica) -> Cluster {
        let mut cluster = Cluster { seen, ..self.clone() };
        if self.shared && seen.step > 1 {
            let replicas = seen.step.min(self.devices_per_node) as f64;
            let levels = cluster.levels.iter_mut().map(|level| &mut level.link);
            levels.chain([&mut cluster.between]).for_each(|link| link.bandwidth /= replicas);
        }
        cluster
    }

    /// How many times slower than others the slowest of every `group` neighbours is, by the number of the first one.
    fn slowest_of_every(&self, group: usize) -> BTreeMap<usize, f64> {
        let of = |device: usize| self.slowdown.get(&device).copied().unwrap_or(1.0);
        let slowest = |device: &usize| {
            let first = device / group * group;
            (first, (first..first + group).map(of).fold(0.0, f64::max))
        };
        self.slowdown.keys().map(slowest).collect()
    }

    /// The place of the slow device `device` in its replica of `ranks` ranks; `self` is the cluster as a replica sees it.
    pub(crate) fn place_of_slow(&self, device: usize, ranks: usize) -> Option<usize> {
        (ranks > 0).then(|| device / self.seen.step % ranks)
    }

    /// The link between two devices.
    pub fn link(&self, from: usize, to: usize) -> Link {
        self.link_of(self.level(from, to))
    }

    /// The distance of two devices: 0 within a node, 1 between nodes, more between groups of nodes.
    pub(crate) fn level(&self, from: usize, to: usize) -> usize {
        let [from, to] = [from, to].map(|device| self.seen.rank(device));
        self.groups().take_while(|devices| from / devices != to / devices).count()
    }

    /// The link between devices at this distance.
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

    /// The slowest link of a ring over the ranks of `group`, on devices seen or not; every rank stands for `each`. Where a node's devices
    /// share its link, neighbours in the ring send at the same time.
    pub(crate) fn ring_of(&self, group: Group, each: usize) -> Ring {
        let [from, to] = group.ends(each);
        let level = self.groups().take_while(|devices| from / devices != to / devices).count();
        let mut link = self.link_of(level);
        if self.shared && level > 0 {
            let sharers = |step: usize| step.min(self.devices_per_node) as f64;
            link.bandwidth *= sharers(self.seen.step) / sharers(group.step * each);
        }
        Ring { link, port: level.min(1) }
    }

    /// The number of devices of a node, then of a group of every level.
    pub(crate) fn groups(&self) -> impl Iterator<Item = usize> {
        [self.devices_per_node].into_iter().chain(self.levels.iter().map(|level| level.devices))
    }

    /// Sizes of the groups in terms of this replica's devices, where all groups of a level have as many of them.
    pub(crate) fn inner(&self) -> impl Iterator<Item = usize> {
        let step = self.seen.step;
        self.groups().filter(move |group| group.is_multiple_of(step)).map(move |group| group / step)
    }

    /// How many times slower a device is than the others.
    pub fn slowdown_of(&self, device: usize) -> f64 {
        self.slowdown.get(&self.seen.rank(device)).copied().unwrap_or(1.0)
    }

    /// The experiment placed on these devices: their cores, vector instructions and memory.
    pub(crate) fn place(&self, mut experiment: Experiment) -> Experiment {
        let ranks = experiment.mesh.ranks();
        let of_node = |bytes| OffloadSpace { devices: self.devices_per_node, bytes };
        let offload = self.offload_memory.map(of_node);
        let (memory, are_gpus) = (self.memory, self.are_gpus);
        let devices = ClusterDevices { ranks, memory, offload, are_gpus };
        let cluster = (!self.helping).then_some(devices);
        let (core, workers) = (self.core, self.cores);
        experiment.host = Host { core, workers, cluster, ..experiment.host };
        experiment
    }

    /// The cluster with the part of its devices' memory that plans may use, as the section `memory` says.
    pub(crate) fn budgeted(&self, memory: &Memory) -> Cluster {
        // The memory that threads share is divided already.
        let budget = if self.helping { self.memory } else { memory.of_device(self.memory) };
        Cluster { budget, ..self.clone() }
    }

    /// The cluster with links that take no time: what remains is computing and waiting.
    #[must_use]
    pub fn without_links(&self) -> Cluster {
        let instant = Link { bandwidth: f64::INFINITY, latency: 0.0 };
        let offload = self.offload.map(|_| instant);
        let mut cluster = Cluster { inside: instant, between: instant, offload, ..self.clone() };
        cluster.levels.iter_mut().for_each(|level| level.link = instant);
        cluster
    }

    /// This machine: `ranks` threads over `cores` cores that exchange blocks through memory. Rates are typical ones;
    /// [`Cluster::with_rates`] replaces them by measured ones.
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
            are_gpus: false,
            cores: 1,
            core: Core::here(),
            rates: Rates {
                forward: THREAD * share,
                backward: THREAD * share,
                products: THREAD_PRODUCTS * share,
                tile: THREAD_TILE,
            },
            peak: None,
            inside: memory,
            between: memory,
            levels: Vec::new(),
            offload: Some(Link { bandwidth: DISK, latency: 0.0 }),
            offload_sharers: ranks,
            offload_memory: None,
            shared: false,
            helping: true,
            slowdown: BTreeMap::new(),
            seen: ALL,
        }
    }

    /// The cluster with a device's measured rates in place of typical ones.
    #[must_use]
    pub fn with_rates(self, rates: Rates, inside: Link) -> Cluster {
        Cluster { rates, inside, ..self }
    }
}
