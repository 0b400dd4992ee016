//! Training gives the same bits wherever ranks run: the losses and hashes by which this is checked.

use std::sync::Arc;

use annulus_comm::{Communicator, Label, World, all_gather_values};
use annulus_experiment::Engine;
use annulus_model::Described;
use annulus_plan::Plan;
use candle_core::DType;

use crate::checkpoint::{Contents, Piece};
use crate::setup::initial::initial_weights;
use crate::setup::shared::{cores_here, ranks_here};
use crate::setup::start::{Handout, Start};
use crate::step::rank::Rank;
use crate::step::slices::gathered::GatheredSlices;
use crate::step::state::parameters::Store;
use crate::step::trainer::Trainer;
use crate::{Opening, Result, Setup, TrainError, open_data};

/// The bits of a few steps' results.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bits {
    /// The loss of every step, as its bits.
    pub losses: Vec<u64>,
    /// blake3 after the first step, of the norm of the gradients, the weights, their f32 masters and the moments: moments are sums of
    /// gradients, so every gradient is compared.
    pub first: [u8; 32],
    /// blake3 after the last step, of the same tensors as `first`.
    pub last: [u8; 32],
}

/// Trains `plan` for `steps` steps in `world`, writing nothing but its token cache. An error unless all ranks have the same bits. `None`:
/// rank 0 is in another process. `cores`: of the machine, which the processes of a host share.
///
/// # Errors
/// Bad data or weights, any failure of a rank, and ranks whose states differ.
pub fn bits(plan: &Plan, steps: u64, cores: usize, world: &World) -> Result<Option<Bits>> {
    // Each process would need a GPU, and there may be fewer: only runs over NCCL compute on GPUs here.
    let setup = match plan.experiment.mesh.engine {
        Engine::Nccl => Setup::on_its_device_over(world, plan, cores)?,
        Engine::Auto | Engine::Mpi => Setup::new(plan, cores_here(world, cores)).over(world),
    };
    let setup = Arc::new(setup);
    let here = ranks_here(world, setup.world())?;
    let data = open_data(plan, Opening::default(), &mut |_| {})?;
    let start = Start::fresh(&plan.experiment, initial_weights(plan, &setup.config)?);
    let store = Store::new(&setup, &start.weights, here.clone())?;
    let start = Handout::new(start, here.clone());
    let program = |rank: Rank| -> Result<Bits> {
        let comm = rank.comm.clone();
        let start = start.take(comm.rank());
        let mut trainer = Trainer::new(rank, plan, data.train.clone(), &start, &store)?;
        drop(start);
        let mut bits = Bits { losses: Vec::new(), first: [0; 32], last: [0; 32] };
        for step in 1..=steps {
            let report = trainer.step()?;
            bits.losses.push(report.loss.to_bits());
            if step == 1 || step == steps {
                let each;
                [bits.last, each] = state(&trainer, report.norm)?;
                same_everywhere(comm.as_ref(), each)?;
            }
            if step == 1 {
                bits.first = bits.last;
            }
        }
        Ok(bits)
    };
    let bits = setup.run(program)?;
    Ok(Some(bits).filter(|_| here.start == 0))
}

/// Two hashes of the state: of every tensor of a checkpoint, from all shards (only on rank 0), and of what every process must hold alike.
fn state(trainer: &Trainer, norm: f64) -> Result<[[u8; 32]; 2]> {
    let (mut all, mut each) = (blake3::Hasher::new(), blake3::Hasher::new());
    let mut add = |name: &str, bytes: &[u8], is_shared: bool| {
        for hasher in [Some(&mut all), Some(&mut each).filter(|_| !is_shared)].into_iter().flatten()
        {
            hasher.update(name.as_bytes()).update(bytes);
        }
    };
    add("norm", &norm.to_bits().to_le_bytes(), false);
    let (comm, division) = (trainer.rank.comm.as_ref(), &trainer.rank.division);
    let mut slices = trainer.finished().slices;
    let mut gathered = GatheredSlices::new(comm, trainer.finished, trainer.finished().slices);
    let is_parted = trainer.rank.setup.tensor > 1;
    for Described { name, shape, .. } in slices.weights() {
        let is_shared = is_parted || division.shards_weights();
        let own = if is_shared { gathered.of_weight(&name) } else { slices.whole(&name) };
        add(&name, &bytes(own?, &shape)?, is_shared);
    }
    for Described { name, shape, .. } in slices.optimizer() {
        let is_shared = slices.are_shared();
        let own = if is_shared { gathered.of_optimizer(&name) } else { slices.of_optimizer(&name) };
        add(&name, &bytes(own?, &shape)?, is_shared);
    }
    Ok([all, each].map(|hasher| *hasher.finalize().as_bytes()))
}

/// The bytes of a tensor of this shape as f32, from `pieces`.
fn bytes(pieces: Vec<Piece>, shape: &[usize]) -> Result<Vec<u8>> {
    let mut whole = vec![0; shape.iter().product::<usize>() * size_of::<f32>()];
    for Piece { elements, runs } in pieces {
        let mut bytes = Vec::new();
        elements.to_dtype(DType::F32)?.write_bytes(&mut bytes)?;
        let mut rest = bytes.as_slice();
        for (begins, many) in runs {
            let (run, behind) = rest.split_at(many * size_of::<f32>());
            whole[begins * size_of::<f32>()..][..run.len()].copy_from_slice(run);
            rest = behind;
        }
    }
    Ok(whole)
}

/// An error unless all ranks have the same hash.
fn same_everywhere(comm: &dyn Communicator, own: [u8; 32]) -> Result<()> {
    let label = Label { pass: "agreement", ..Label::default() };
    let all = all_gather_values(comm, label, &own)?;
    match all.iter().position(|one| *one != all[0]) {
        None => Ok(()),
        Some(rank) => {
            Err(TrainError::Internal(format!("rank {rank} holds other state than rank 0")))
        }
    }
}
