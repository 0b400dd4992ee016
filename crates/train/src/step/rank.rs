//! One rank: the model, its attention, its workers, its place in the mesh.

use crate::setup::shared::{once, ranks_here};
use annulus_comm::threads::Options;
use annulus_ops::Pool;
use std::ops::Range;
use std::slice;
use std::sync::Arc;

use annulus_comm::{Axis, Communicator, Mesh, Metered};
use annulus_data::{Sequence, Tokens};
use annulus_memory::{Class, scope};
use annulus_model::{Attentions, DropoutKey, Keep, Llama, Rotaries, Shard, TensorRanks};
use annulus_ops::attention::Dropout;
use annulus_ops::{Backend, IGNORED, check_targets, check_tokens};
use annulus_sequence::{Documents, Pass, Positions, Rule, pairs_between};
use annulus_text::count;
use candle_core::Tensor;

use crate::setup::assemble::LayerGroupSchedules;
use crate::setup::device;
use crate::setup::pages::Room;
use crate::step::hashes::points::Watch;
use crate::step::state::division::Division;
use crate::step::state::offload::{self, Offload};
use crate::{Result, Setup, TrainError, memory};

/// One rank and what it computes with; weights are handed to it.
#[derive(Debug)]
pub(crate) struct Rank {
    pub(crate) setup: Arc<Setup>,
    pub(crate) model: Llama,
    pub(crate) attention: Attentions,
    pub(crate) rotary: Rotaries,
    /// The tensor-parallel ranks, which hold the same positions as this one.
    pub(crate) tensor: TensorRanks,
    pub(crate) backend: Backend,
    /// The number of this rank's device among those of its process.
    pub(crate) device: usize,
    pub(crate) mesh: Mesh,
    /// Which elements of parameters are this rank's to sum and update.
    pub(crate) division: Division,
    /// The ranks of the mesh, whose traffic is counted.
    pub(crate) meter: Arc<Metered>,
    /// All ranks, like `meter`, for what is not counted as traffic of the step: measurements, errors, agreement.
    pub(crate) comm: Arc<dyn Communicator>,
    /// Where activations are offloaded to until backward; `None`: they stay in memory.
    pub(crate) offload: Option<Box<dyn Offload>>,
    /// How much memory the process of this rank may take.
    pub(crate) room: Room,
}

/// A micro-batch on one rank.
#[derive(Clone, Debug)]
pub(crate) struct MicroBatch {
    pub(crate) shard: Shard,
    /// The number of targets on this rank; of tensor-parallel ranks each counts its own rows.
    pub(crate) targets: u64,
    /// The (query, key) pairs that its sequences' documents leave visible, over all layers: counted by the first of the ranks that share
    /// the sequences, 0 on the others and where the mask does not depend on the data's documents.
    pub(crate) pairs: u64,
    /// Where hashes of what is computed go, if the step is hashed.
    pub(crate) watch: Option<Watch>,
}

impl Setup {
    /// Runs `program` on all ranks, and returns the result of the first rank of this process.
    ///
    /// # Errors
    /// Failures of the ranks, processes that cannot share them evenly, a rank without tokens on a GPU, and a setup in which a count is 0.
    pub(crate) fn run<T: Send>(
        self: &Arc<Self>,
        program: impl Fn(Rank) -> Result<T> + Send + Sync,
    ) -> Result<T> {
        let (processes, ranks) = (&self.processes, self.world());
        let all_alike = |error| once(processes, error);
        self.check().map_err(all_alike)?;
        ranks_here(processes, ranks).map_err(all_alike)?;
        device::check_tokens(self.shards(), &self.processors).map_err(all_alike)?;
        self.join()?;
        let options = Options { world: ranks, deadline: self.deadline, stop: Arc::default() };
        let mut found = self.joined().run(&options, |comm| program(self.rank(comm)?))?;
        Ok(found.swap_remove(0))
    }

    /// The mesh of a rank, and which elements of parameters are its own. All ranks must call it.
    pub(crate) fn divided(&self, comm: &Arc<dyn Communicator>) -> Result<(Mesh, Division)> {
        let mesh = Mesh::of(comm.clone(), self.grid())?;
        let (rank, here) = (comm.rank(), self.ranks_of_process());
        let division = Division::new(&mesh, rank, here, self.parts(), self.sharding())?;
        Ok((mesh, division))
    }

    /// This rank, on the thread that will run it: its cores, its attention, its place in the mesh.
    pub(crate) fn rank(self: &Arc<Self>, comm: Arc<dyn Communicator>) -> Result<Rank> {
        self.check()?;
        let rank = comm.rank();
        memory::enter(rank);
        let here = self.ranks_of_process();
        let own = rank % here;
        let backend = if let Some(processor) = self.processors.of(own, here) {
            Backend::Gpu(processor.clone())
        } else {
            let enter = move || memory::enter(rank);
            Backend::Cpu(Pool::share(&self.cores, here, enter).with(self.core)?)
        };
        let backend = backend.in_blocks(self.block);
        let meter = Metered::at(comm.clone(), self.rank_hosts());
        let counted: Arc<dyn Communicator> = meter.clone();
        let (mesh, division) = self.divided(&counted)?;
        let attention = self.attention(&backend, mesh.group(&[Axis::Sequence]).clone())?;
        let rotary = Rotaries::new(&self.config.shape, &self.frequencies, attention.positions());
        let tensor = TensorRanks::new(mesh.group(&[Axis::Tensor]).clone());
        // Traffic of setting up the mesh counts for no step.
        meter.take();
        Ok(Rank {
            model: Llama::new(&self.config, self.loss_chunk),
            attention,
            rotary,
            tensor,
            backend,
            device: own / self.ranks_of_device(),
            mesh,
            division,
            meter,
            comm,
            offload: None,
            room: Room::ANY,
            setup: self.clone(),
        })
    }
}

impl Rank {
    /// The rank, in a process that keeps to `room`.
    pub(crate) fn within(self, room: &Room) -> Rank {
        Rank { room: room.clone(), ..self }
    }

    /// The rank, with activations offloaded where the experiment says so.
    pub(crate) fn offloading(self) -> Result<Rank> {
        let offload = self.offload_of(Class::Activations)?;
        Ok(Rank { offload, ..self })
    }

    /// Where this rank offloads what is of a class; `None`: it stays in memory.
    pub(crate) fn offload_of(&self, class: Class) -> Result<Option<Box<dyn Offload>>> {
        let setup = &self.setup;
        let is_wanted = match class {
            Class::Optimizer => setup.offload.optimizer(),
            _ => setup.offload.activations(),
        };
        let folder = setup.offload_place.folder(matches!(self.backend, Backend::Gpu(_)));
        let open = || offload::open(folder, self.comm.rank(), class, &self.backend);
        is_wanted.then(open).transpose()
    }

    /// Which of a batch's sequences replica `replica` computes.
    pub(crate) fn share_of(&self, replica: usize, batch: usize) -> Range<usize> {
        let share = batch / self.setup.data;
        replica * share..(replica + 1) * share
    }

    /// The replica that this rank is part of.
    pub(crate) fn replica(&self) -> usize {
        self.mesh.coordinate(Axis::Data)
    }

    /// The rows of this rank's micro-batches, in order: those of its replica among `batch` sequences.
    pub(crate) fn micro_batches(&self, batch: usize) -> impl Iterator<Item = Range<usize>> {
        let (share, most) = (self.share_of(self.replica(), batch), self.setup.micro_batch);
        share.clone().step_by(most).map(move |first| first..share.end.min(first + most))
    }

    /// What this rank holds of `rows` sequences in step `step` (from 1); `read` appends the ids at the positions it is given. Ids are
    /// checked against the vocabulary here, where they are on the host anyway.
    pub(crate) fn micro_batch(
        &self,
        step: u64,
        rows: usize,
        read: impl FnOnce(&Positions, &mut Tokens) -> Result<()>,
    ) -> Result<MicroBatch> {
        let _ids = scope(Class::Data);
        let positions = self.attention.positions();
        let mut tokens = Tokens::with_room(rows, positions);
        read(positions, &mut tokens)?;
        let Tokens { inputs, targets, documents } = tokens;
        let shape = (rows, positions.tokens());
        check_read([inputs.len(), targets.len(), documents.len()], shape)?;
        self.setup.check_documents(&documents)?;
        let device = self.backend.device();
        check_tokens(&inputs, self.setup.config.vocab_size)?;
        check_targets(&targets, self.setup.config.vocab_size)?;
        let own = &targets[self.tensor.own(targets.len())];
        let asked = own.iter().filter(|&&target| target != IGNORED).count();
        let documents = self.setup.packed.then(|| documents_rule(&documents));
        let shard = Shard {
            inputs: Tensor::from_vec(inputs, shape, &device)?,
            targets: Tensor::from_vec(targets, shape, &device)?,
            attention: self.attention_of(documents.as_ref())?,
            tensor: self.tensor.clone(),
            rotary: self.rotary.clone(),
            backend: self.backend.clone(),
            step,
            keep: Keep::Nothing,
            dropout: None,
        };
        let pairs = documents.map_or(0, |documents| self.pairs_of(&documents));
        Ok(MicroBatch { shard, targets: asked as u64, pairs, watch: None })
    }

    /// What this rank holds of sequences that are given whole, in step `step` (from 1).
    pub(crate) fn micro_batch_of(&self, step: u64, sequences: &[Sequence]) -> Result<MicroBatch> {
        sequences.iter().try_for_each(|sequence| self.setup.check_length(sequence))?;
        self.micro_batch(step, sequences.len(), |positions, into| {
            for sequence in sequences {
                into.push(sequence, positions);
            }
            Ok(())
        })
    }

    /// Attention under the mask of sequences with these documents; `None`: the mask does not depend on them.
    fn attention_of(&self, documents: Option<&Rule>) -> Result<Attentions> {
        let Some(documents) = documents else { return Ok(self.attention.clone()) };
        Ok(self.attention.map(|kind, attention| {
            attention.with_mask(self.setup.groups[kind].mask.clone().and(documents.clone()))
        })?)
    }

    /// The visible pairs of whole sequences with these documents, over all layers; 0 on all but the first of the ranks that share them.
    fn pairs_of(&self, documents: &Rule) -> u64 {
        if [Axis::Sequence, Axis::Tensor].into_iter().any(|axis| self.mesh.coordinate(axis) > 0) {
            return 0;
        }
        let all = Positions::all(self.setup.tokens);
        let of_group = |group: &LayerGroupSchedules| {
            let mask = group.mask.clone().and(documents.clone());
            pairs_between(&mask, &all, &all) * group.layers.len() as u64
        };
        self.setup.groups.iter().map(of_group).sum()
    }
}

impl Setup {
    /// Checks what a program may have changed in a setup: no count is 0, and there are layer groups, all with schedules of its ranks.
    pub(crate) fn check(&self) -> Result<()> {
        let counts = [
            ("data", self.data),
            ("sequence", self.sequence),
            ("tensor", self.tensor),
            ("micro_batch", self.micro_batch),
            ("loss_chunk", self.loss_chunk),
            ("block", self.block.unwrap_or(1)),
        ];
        let ranks_of = |group: &LayerGroupSchedules| group.schedules.of(Pass::Forward).world();
        let mut scheduled = self.groups.iter().map(ranks_of);
        let message = match counts.iter().find(|(_, count)| *count == 0) {
            Some((name, _)) => format!("`{name}` of the setup is 0, expected at least 1"),
            None if self.groups.is_empty() => "`groups` of the setup are empty".to_owned(),
            None => match scheduled.find(|ranks| *ranks != self.sequence) {
                Some(ranks) => format!(
                    "`sequence` of the setup is {}, and its schedules are of {}",
                    self.sequence,
                    count(ranks, "rank")
                ),
                None => return Ok(()),
            },
        };
        let hint = "`Setup::new` and `Setup::of_model` make whole setups";
        Err(TrainError::configuration(message, hint))
    }

    /// Checks that every rank holds whole layers, as all of `ask` computes: with weights that are not split over tensor-parallel ranks.
    pub(crate) fn check_whole_layers(&self) -> Result<()> {
        if self.tensor == 1 {
            return Ok(());
        }
        Err(TrainError::configuration(
            format!(
                "`mesh.tensor` is {}, but scoring, evaluation and generation need ranks that hold whole layers",
                self.tensor
            ),
            "set `mesh.tensor=1`",
        ))
    }

    /// Checks that a sequence and its documents are as long as the setup says: the end of a longer one would be ignored.
    pub(crate) fn check_length(&self, sequence: &Sequence) -> Result<()> {
        let found = [sequence.inputs.len(), sequence.targets.len()];
        if found == [self.tokens; 2] {
            return self.check_documents(slice::from_ref(&sequence.documents));
        }
        let ([inputs, targets], wanted) = (found, self.tokens);
        Err(TrainError::configuration(
            format!(
                "a sequence of {inputs} inputs and {targets} targets, expected {wanted} of each"
            ),
            "sequences are as long as `data.tokens` says: cut or pad them, or plan for their length",
        ))
    }

    /// Checks that the documents of every sequence, its padding included, are as long as the sequence; a list without any is one document.
    /// Where queries see all documents, their lengths mean nothing.
    fn check_documents(&self, documents: &[Vec<usize>]) -> Result<()> {
        let sum = |lengths: &[usize]| lengths.iter().copied().fold(0, usize::saturating_add);
        let wanted = self.tokens;
        let is_wrong = |lengths: &&Vec<usize>| !lengths.is_empty() && sum(lengths) != wanted;
        let Some(wrong) = documents.iter().find(is_wrong).filter(|_| self.packed) else {
            return Ok(());
        };
        let found = sum(wrong);
        Err(TrainError::configuration(
            format!("documents of {found} tokens in all in a sequence, expected {wanted}"),
            "`documents` are the lengths of all documents in a sequence, in order; padding is one more",
        ))
    }
}

/// Checks that a source gave as many ids, targets and lists of documents as `rows` sequences at `positions` positions have.
fn check_read(
    [ids, targets, documents]: [usize; 3],
    (rows, positions): (usize, usize),
) -> Result<()> {
    if [ids, targets, documents] == [rows * positions, rows * positions, rows] {
        return Ok(());
    }
    Err(TrainError::configuration(
        format!(
            "the source gave {ids} ids, {targets} targets and the documents of {documents} sequences, expected those of {rows} sequences at \
             {positions} positions"
        ),
        "`Source::read` pushes every row at the positions that it is given",
    ))
}

/// The rule of documents of these lengths, by sequence.
fn documents_rule(documents: &[Vec<usize>]) -> Rule {
    Rule::Documents(documents.iter().map(|lengths| Documents::of_lengths(lengths)).collect())
}

impl MicroBatch {
    /// The micro-batch with dropout of attention weights and of adapters' inputs, where the experiment has them; `first` is the number of
    /// its first sequence in the step, `seed` the experiment's.
    pub(crate) fn dropping(
        mut self,
        dropout: Option<Dropout>,
        seed: u64,
        first: usize,
    ) -> Result<MicroBatch> {
        self.shard.dropout = Some(DropoutKey { seed, sequence: first });
        if let Some(dropout) = dropout {
            let dropout = Dropout { sequence: first, ..dropout };
            self.shard.attention = self.shard.attention.map(|_, one| one.with_dropout(dropout))?;
        }
        Ok(self)
    }
}
