//! Every key of a cluster's file.

use annulus_experiment::NAME;
use annulus_machine::Instructions;
use annulus_yaml::Absent::{Is, Means, Required};
use annulus_yaml::Interval::AboveZero;
use annulus_yaml::Kind::{Count, Each, Form, Quantity, Real, Section, Word};
use annulus_yaml::{Unit, section, words};

use crate::Link;

/// The most devices of a cluster: keeps walks short.
pub(crate) const MOST_DEVICES: u64 = 1 << 14;

section! {
    /// The file of a cluster, as written.
    #[derive(Clone, Debug)]
    pub struct ClusterKeys {
        name: String = Form(&NAME), Required, "what the cluster is called";
        nodes: usize = Count(1, MOST_DEVICES), Is("1"), "nodes";
        devices_per_node: usize = Count(1, MOST_DEVICES), Required,
            "GPUs, or other devices, of a node";
        memory: Option<f64> = Quantity(Unit::Bytes), Means("as much as it takes"), "memory of a device";
        cores: Option<usize> = Count(1, MOST_DEVICES), Means("1 where there is `core`, else devices are GPUs"),
            "cores of a device that is a processor";
        core: CoreKeys = Section(CoreKeys::KEYS), Means("as this machine's"),
            "what such a core computes with";
        compute: ComputeKeys = Section(ComputeKeys::KEYS), Required, "what a device achieves";
        inside: Link = Section(Link::KEYS), Required, "the link of a device to others of its node";
        between: BetweenKeys = Section(BetweenKeys::KEYS), Means("there is one node"),
            "the link of a device to other nodes";
        levels: Vec<(String, LevelKeys)> = Each(LevelKeys::KEYS), Means("all nodes are joined alike"),
            "groups of nodes, such as rails or pods, by name";
        offload: OffloadKeys = Section(OffloadKeys::KEYS), Means("what offloading takes is not estimated"),
            "from a device to where what `memory.offload` puts away waits, a host's memory or a disk, and back";
        devices: Vec<(String, DeviceKeys)> = Each(DeviceKeys::KEYS), Means("all alike"),
            "devices that differ, by number from 0";
    }
}

section! {
    /// The section `core`.
    #[derive(Clone, Debug)]
    pub struct CoreKeys {
        cache: Option<f64> = Quantity(Unit::Bytes), Means("as this machine's"), "its second-level cache";
        vector: Option<String> = Word(&Instructions::WORDS), Means("as this machine's"),
            "the vector instructions that it uses";
    }
}

section! {
    /// The section `compute`.
    #[derive(Clone, Debug)]
    pub struct ComputeKeys {
        forward: f64 = Quantity(Unit::Speed), Required, "speed of attention forward, as achieved, counting 4 · head_dim per visible pair and query head; backward counts 10 · head_dim";
        backward: Option<f64> = Quantity(Unit::Speed), Means("`forward`"), "speed of attention backward";
        products: Option<f64> = Quantity(Unit::Speed), Means("`forward`"), "speed of matrix multiplications with weights";
        peak: Option<f64> = Quantity(Unit::Speed), Means("unknown"),
            "the most that a device's data sheet promises in the dtype of these speeds: model FLOP/s utilization is a share of it";
        tile: usize = Count(1, 1 << 16), Is("128"),
            "rows and columns of scores that are computed whole or skipped whole";
    }
}

section! {
    /// The section `between`.
    #[derive(Clone, Debug)]
    pub struct BetweenKeys {
        bandwidth: Option<f64> = Quantity(Unit::Bandwidth), Means("none"), "bytes per second, one way";
        latency: f64 = Quantity(Unit::Time), Is("0"), "time until the first byte is there";
        per: Per = Word(Per::WORDS), Is("device"), "who has this bandwidth to itself";
    }
}

section! {
    /// The section `offload`.
    #[derive(Clone, Debug)]
    pub struct OffloadKeys {
        bandwidth: Option<f64> = Quantity(Unit::Bandwidth), Means("none"), "bytes per second, one way";
        latency: f64 = Quantity(Unit::Time), Is("0"), "time until the first byte is there";
        per: Per = Word(Per::WORDS), Is("device"), "who has this bandwidth to itself";
        memory: Option<f64> = Quantity(Unit::Bytes), Means("as much as it takes"),
            "a node's memory or disk for what its devices offload together";
    }
}

section! {
    /// An item of `levels`.
    #[derive(Clone, Debug)]
    pub struct LevelKeys {
        nodes: usize = Count(2, MOST_DEVICES), Required, "nodes of a group";
        bandwidth: f64 = Quantity(Unit::Bandwidth), Required,
            "bytes per second of a device to other groups, one way";
        latency: f64 = Quantity(Unit::Time), Is("0"), "time until the first byte is there";
    }
}

/// The key `per`: who has a link of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Per {
    /// Every device has a link.
    Device,
    /// All devices of a node share a link.
    Node,
}

words!(Per { Device = "device", Node = "node" });

section! {
    /// An item of `devices`.
    #[derive(Clone, Debug)]
    pub struct DeviceKeys {
        slowdown: f64 = Real(AboveZero), Is("1"), "how many times longer it takes than the others";
    }
}
