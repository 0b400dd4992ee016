//! Reads a cluster from its file, as strictly as an experiment, reporting all mistakes together.

use std::path::Path;

use annulus_machine::{Core, Instructions};
use annulus_yaml::{Document, Places, Problem, Problems, read_file};

use crate::described::ALL;
use crate::keys::{ClusterKeys, CoreKeys, LevelKeys, MOST_DEVICES, Per};
use crate::{Cluster, Level, Link, Rates};

impl Cluster {
    /// Reads and checks a cluster's file at `path`.
    ///
    /// # Errors
    /// Every mistake in it, with file, line and column.
    pub fn load(path: &Path) -> Result<Cluster, Problems> {
        Cluster::parse(&path.display().to_string(), &read_file(path)?)
    }

    /// Reads and checks a cluster from `text`; errors call the file `name`.
    ///
    /// # Errors
    /// As [`Cluster::load`].
    pub fn parse(name: &str, text: &str) -> Result<Cluster, Problems> {
        let reading = Document::parse(name, text, &[])?.section::<ClusterKeys>("a cluster");
        let (keys, places, mut report) = (reading.section, reading.places, reading.report);
        report.extend(keys.iter().flat_map(|keys| keys.problems(&places)));
        match keys.and_then(ClusterKeys::meant) {
            Some(cluster) if report.is_empty() => Ok(cluster),
            _ => Err(report.finish()),
        }
    }
}

impl ClusterKeys {
    fn meant(self) -> Option<Cluster> {
        let levels = self.levels();
        let (compute, inside, between) = (self.compute, self.inside, self.between);
        let latency = self.offload.latency;
        let offload = self.offload.bandwidth.map(|bandwidth| Link { bandwidth, latency });
        let is_of_node = self.offload.per == Per::Node;
        let offload_sharers = if is_of_node { self.devices_per_node } else { 1 };
        let forward = compute.forward;
        let apart = |bandwidth| Link { bandwidth, latency: between.latency };
        let slowdown = self.devices.iter();
        let slowdown =
            slowdown.filter_map(|(word, device)| Some((word.parse().ok()?, device.slowdown)));
        Some(Cluster {
            name: self.name,
            nodes: self.nodes,
            devices_per_node: self.devices_per_node,
            memory: self.memory.map(|bytes| bytes as u64),
            budget: None,
            are_gpus: self.cores.is_none() && !self.core.is_written(),
            cores: self.cores.unwrap_or(1),
            core: self.core.meant()?,
            rates: Rates {
                forward,
                backward: compute.backward.unwrap_or(forward),
                products: compute.products.unwrap_or(forward),
                tile: compute.tile,
            },
            peak: compute.peak,
            inside,
            between: between.bandwidth.map_or(inside, apart),
            levels,
            offload,
            offload_sharers,
            offload_memory: self.offload.memory.map(|bytes| bytes as u64),
            shared: between.per == Per::Node,
            helping: false,
            slowdown: slowdown.collect(),
            seen: ALL,
        })
    }

    /// Broken rules between keys.
    fn problems(&self, places: &Places) -> Vec<Problem> {
        let mut problems = Vec::new();
        let devices = self.nodes.saturating_mul(self.devices_per_node);
        if devices as u64 > MOST_DEVICES {
            let message = format!("{devices} devices, expected at most {MOST_DEVICES}");
            problems.push(places.problem("nodes", message));
        }
        if self.nodes > 1 && self.between.bandwidth.is_none() {
            let message = format!("`between` is missing: it joins {} nodes", self.nodes);
            let hint = "add `between: { bandwidth: 50GB/s, latency: 5us }`";
            problems.push(places.problem("nodes", message).hint(hint));
        }
        let (between, offload) = (&self.between, &self.offload);
        let links = [
            ("between", between.bandwidth, between.latency),
            ("offload", offload.bandwidth, offload.latency),
        ];
        for (key, bandwidth, latency) in links {
            if bandwidth.is_none() && latency > 0.0 {
                let message = format!("`{key}` has a latency and no bandwidth");
                let problem = places.problem(&format!("{key}.latency"), message);
                problems.push(problem.hint(format!("add `{key}.bandwidth`, as in 50GB/s")));
            }
        }
        problems.extend(self.problems_of_levels(places));
        problems.extend(self.problem_of_peak(places));
        for (word, _) in &self.devices {
            // `01` would be a second name of device 1.
            let is_plain = |device: usize| device < devices && device.to_string() == *word;
            if !word.parse().is_ok_and(is_plain) {
                let message = format!("`{word}` is not a device of this cluster");
                let hint = format!("its devices are numbered from 0 to {}", devices - 1);
                problems.push(places.problem(&format!("devices.{word}"), message).hint(hint));
            }
        }
        problems
    }
}

impl ClusterKeys {
    /// The levels of node groups, the smallest first.
    fn levels(&self) -> Vec<Level> {
        let level = |(name, keys): &(String, LevelKeys)| Level {
            name: name.clone(),
            devices: keys.nodes.saturating_mul(self.devices_per_node),
            link: Link { bandwidth: keys.bandwidth, latency: keys.latency },
        };
        let mut levels: Vec<Level> = self.levels.iter().map(level).collect();
        levels.sort_by_key(|level| level.devices);
        levels
    }

    /// Refuses a peak below a speed that is reached.
    fn problem_of_peak(&self, places: &Places) -> Option<Problem> {
        let compute = &self.compute;
        let reached = [Some(compute.forward), compute.backward, compute.products];
        let fastest = reached.into_iter().flatten().fold(0.0, f64::max);
        let peak = compute.peak.filter(|peak| *peak < fastest)?;
        let message = format!(
            "`compute.peak` is {:.3} TFLOP/s, below the {:.3} that devices reach (`forward`, `backward` or `products`)",
            peak / 1e12,
            fastest / 1e12
        );
        let hint = "write the peak of the data sheet with its unit, as in 989TFLOP/s";
        Some(places.problem("compute.peak", message).hint(hint))
    }

    /// Refuses groups that do not divide those of the next level, or the cluster.
    fn problems_of_levels(&self, places: &Places) -> Vec<Problem> {
        let mut levels: Vec<_> =
            self.levels.iter().map(|(name, keys)| (name, keys.nodes)).collect();
        levels.sort_by_key(|(_, nodes)| *nodes);
        let above = levels.iter().skip(1).map(|(name, nodes)| (format!("a `{name}`"), *nodes));
        let above = above.chain([(String::from("this cluster"), self.nodes)]);
        let of_level = |((name, nodes), (whole, all)): (&(&String, usize), (String, usize))| {
            let divides = *nodes < all && all.is_multiple_of(*nodes);
            let message = format!(
                "a `{name}` has {nodes} nodes, expected fewer than the {all} of {whole}, and a divisor"
            );
            (!divides).then(|| places.problem(&format!("levels.{name}.nodes"), message))
        };
        levels.iter().zip(above).filter_map(of_level).collect()
    }
}

impl CoreKeys {
    /// Whether the file says what a core is like.
    fn is_written(&self) -> bool {
        self.cache.is_some() || self.vector.is_some()
    }

    /// A core of this machine, with the written values in place of detected ones.
    fn meant(self) -> Option<Core> {
        let mut core = Core::here();
        if let Some(bytes) = self.cache {
            core.caches = core.caches.with_second(bytes as usize);
        }
        if let Some(word) = self.vector {
            core.instructions = Instructions::from_word(&word)?;
        }
        Some(core)
    }
}
