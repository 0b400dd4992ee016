//! Meshes with as many ranks that replace some context parallelism by tensor parallelism, compared.

use annulus_experiment::Resolved;
use annulus_text::{aligned, duration, size};
use serde_json::{Value, json};

use crate::{Choice, Cluster, Estimate};

/// The most tensor-parallel ranks that are tried: more than a node has are slow.
const MOST: usize = 8;

/// Meshes with as many ranks, ordered by step time.
#[derive(Clone, Debug, PartialEq)]
pub struct Meshes(Vec<Mesh>);

/// One mesh of the comparison.
#[derive(Clone, Debug, PartialEq)]
struct Mesh {
    /// Context-parallel and tensor-parallel ranks.
    sequence: usize,
    tensor: usize,
    /// Whether the file has this mesh.
    is_written: bool,
    /// The best strategy on this mesh, or the written one.
    strategy: String,
    fits: bool,
    estimate: Estimate,
}

impl Meshes {
    /// The meshes in which an experiment's sequence ranks, and its model, can be divided; `choice` is that of the written one.
    pub fn of(resolved: &Resolved, cluster: &Cluster, choice: &Choice) -> Meshes {
        let written = &resolved.experiment.mesh;
        let ranks = written.sequence * written.tensor;
        let divides = |tensor: &usize| written.weights.is_none() && ranks.is_multiple_of(*tensor);
        let mesh = |tensor: usize| {
            let mut resolved = resolved.clone();
            let mesh = &mut resolved.experiment.mesh;
            (mesh.sequence, mesh.tensor) = (ranks / tensor, tensor);
            let is_written = tensor == written.tensor;
            let other;
            let choice = if is_written {
                choice
            } else {
                other = Choice::among(&resolved, cluster).ok()?;
                &other
            };
            let (strategy, fits, estimate) = choice.answered()?;
            let sequence = ranks / tensor;
            Some(Mesh { sequence, tensor, is_written, strategy, fits, estimate })
        };
        let few = 1..=MOST.min(cluster.devices_per_node);
        let beyond = Some(written.tensor).filter(|tensor| !few.contains(tensor));
        let all = few.filter(divides).chain(beyond);
        let mut meshes: Vec<Mesh> = all.filter_map(mesh).collect();
        meshes.sort_by(|a, b| a.estimate.step.total_cmp(&b.estimate.step));
        Meshes(meshes)
    }

    /// `mesh.sequence` and `mesh.tensor` of the fastest mesh that fits where the written one does not.
    pub fn fitting(&self) -> Option<[usize; 2]> {
        let other = self.0.iter().find(|mesh| mesh.fits && !mesh.is_written)?;
        Some([other.sequence, other.tensor])
    }

    /// The comparison as text; `None` where there is only one mesh.
    pub fn to_text(&self) -> Option<String> {
        let head = ["mesh of a sequence", "strategy", "step", "peak memory", ""];
        let row = |mesh: &Mesh| {
            let notes = [(mesh.is_written, "as written"), (!mesh.fits, "does not fit")];
            let notes = notes.into_iter().filter_map(|(is, note)| is.then_some(note));
            [
                format!("sequence={} tensor={}", mesh.sequence, mesh.tensor),
                mesh.strategy.clone(),
                duration(mesh.estimate.step),
                size(mesh.estimate.fullest()),
                notes.collect::<Vec<_>>().join(", "),
            ]
        };
        let rows = self.0.iter().map(|mesh| row(mesh).to_vec());
        let rows: Vec<Vec<String>> =
            [head.map(str::to_owned).to_vec()].into_iter().chain(rows).collect();
        (self.0.len() > 1).then(|| aligned(&rows))
    }

    /// The comparison as JSON, for programs.
    pub fn to_json(&self) -> Value {
        let mesh = |mesh: &Mesh| {
            json!({
                "sequence": mesh.sequence,
                "tensor": mesh.tensor,
                "written": mesh.is_written,
                "strategy": mesh.strategy,
                "step": mesh.estimate.step,
                "peak": mesh.estimate.fullest(),
                "fits": mesh.fits,
            })
        };
        self.0.iter().map(mesh).collect()
    }
}
