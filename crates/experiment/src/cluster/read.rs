//! A cluster from its file: as strict as an experiment, all mistakes at once.

use std::collections::BTreeMap;
use std::path::Path;

use annulus_machine::{Core, Instructions};

use super::keys::{CLUSTER, MOST_DEVICES};
use super::{Cluster, Link, Rates};
use crate::load::{self, too_large};
use crate::problem::Report;
use crate::source::Source;
use crate::tree::{self, Node};
use crate::values::Values;
use crate::{Places, Problem, Problems, extract};

impl Cluster {
    /// Reads and checks the file at `path`.
    ///
    /// # Errors
    /// Every mistake in it, with file, line and column.
    pub fn load(path: &Path) -> Result<Cluster, Problems> {
        Cluster::parse(&path.display().to_string(), &load::read_text(path)?)
    }

    /// The same from text; `name` is what errors call the file.
    ///
    /// # Errors
    /// As [`Cluster::load`].
    pub fn parse(name: &str, text: &str) -> Result<Cluster, Problems> {
        if text.len() as u64 > load::LARGEST {
            return Err(too_large(name).into());
        }
        let mut report = Report::new(vec![Source::file(name, text)]);
        let root = tree::read(&mut report, 0, 0);
        if root.is_none() && !report.is_empty() {
            return Err(report.finish());
        }
        let root = root.unwrap_or_else(|| Node::empty(0));
        let values = extract::file(&root, &mut report, CLUSTER, "a cluster");
        let places = Places::new(report.sources.clone(), values.spans.clone());
        let cluster = cluster(&values);
        report.extend(cluster.iter().flat_map(|cluster| check(cluster, &values, &places)));
        match cluster {
            Some(cluster) if report.is_empty() => Ok(cluster),
            _ => Err(report.finish()),
        }
    }
}

fn cluster(values: &Values) -> Option<Cluster> {
    let forward = values.real("compute.forward")?;
    let speed = |key| Some(values.optional(key, Values::real)?.unwrap_or(forward));
    let inside = link(values, "inside")?;
    Some(Cluster {
        name: values.text("name")?.to_owned(),
        nodes: values.size("nodes")?,
        devices_per_node: values.size("devices_per_node")?,
        memory: values.optional("memory", Values::real)?.map(|bytes| bytes as u64),
        cores: values.size("cores")?,
        core: core(values)?,
        rates: Rates {
            forward,
            backward: speed("compute.backward")?,
            products: speed("compute.products")?,
            tile: values.size("compute.tile")?,
        },
        inside,
        between: link(values, "between").unwrap_or(inside),
        shared: values.text("between.per") == Some("node"),
        helping: false,
        slowdown: slowdown(values),
    })
}

/// A core of this machine, but for what is written.
fn core(values: &Values) -> Option<Core> {
    let mut core = Core::here();
    if let Some(bytes) = values.optional("core.cache", Values::real)? {
        core.caches = core.caches.with_second(bytes as usize);
    }
    if let Some(word) = values.optional("core.vector", Values::text)? {
        core.instructions = Instructions::from_word(word)?;
    }
    Some(core)
}

fn link(values: &Values, section: &str) -> Option<Link> {
    Some(Link {
        bandwidth: values.real(&format!("{section}.bandwidth"))?,
        latency: values.real(&format!("{section}.latency"))?,
    })
}

/// The devices that are written as numbers; [`check`] refuses the others.
fn slowdown(values: &Values) -> BTreeMap<usize, f64> {
    let written = |word: &String| {
        Some((word.parse().ok()?, values.real(&format!("devices.{word}.slowdown"))?))
    };
    words(values).iter().filter_map(written).collect()
}

fn words(values: &Values) -> &[String] {
    values.free.get("devices").map_or(&[], Vec::as_slice)
}

/// What keys must be to each other.
fn check(cluster: &Cluster, values: &Values, places: &Places) -> Vec<Problem> {
    let mut problems = Vec::new();
    let devices = cluster.devices();
    if devices as u64 > MOST_DEVICES {
        let message = format!("{devices} devices, wanted at most {MOST_DEVICES}");
        problems.push(places.problem("nodes", message));
    }
    let joined = values.optional("between.bandwidth", Values::real) != Some(None);
    if cluster.nodes > 1 && !joined {
        let message = format!("`between` is missing: it joins {} nodes", cluster.nodes);
        let hint = "add `between: { bandwidth: 50GB/s, latency: 5us }`";
        problems.push(places.problem("nodes", message).hint(hint));
    }
    for word in words(values) {
        if !word.parse().is_ok_and(|device: usize| device < devices) {
            let message = format!("`{word}` is no device of this cluster");
            let hint = format!("its devices are numbered from 0 to {}", devices - 1);
            problems.push(places.problem(&format!("devices.{word}"), message).hint(hint));
        }
    }
    problems
}
