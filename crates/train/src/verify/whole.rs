//! Attention over a whole sequence: sharded over ranks, the results joined again. For `attend` and `verify`.

use std::sync::Arc;
use std::time::Duration;

use annulus_attention::{Attention, CallSite, Qkv, rows_at};
use annulus_comm::threads::Options;
use annulus_comm::{Communicator, Label, World};
use annulus_experiment::Kernel;
use annulus_ops::attention::{Attended, AttentionKernel, BackwardTile, KeyValueGradients, Tile};
use annulus_ops::{Backend, Cores, Pool};
use annulus_sequence::{
    Heads, Layout, Mask, Pass, Positions, Route, Schedules, Setting, Strategy, View,
};
use candle_core::{DType, Device, Result, Tensor};

use crate::TrainError;
use crate::setup::assemble::kernel;
use crate::setup::device;
use crate::setup::processors::Processors;
use crate::setup::shared::{once, ranks_here};

/// Inputs of attention and its gradient: q, gradient [B, Hq, S, D]; k, v [B, Hkv, S, D].
#[derive(Clone, Debug)]
pub struct Question {
    /// Queries [B, Hq, S, D].
    pub q: Tensor,
    /// Keys [B, Hkv, S, D].
    pub k: Tensor,
    /// Values [B, Hkv, S, D].
    pub v: Tensor,
    /// The gradient of the output [B, Hq, S, D].
    pub gradient: Tensor,
    /// Which keys a query sees.
    pub mask: Mask,
    /// The factor by which scores are multiplied.
    pub scale: f64,
}

/// Results of attention, forward and backward; f32 for f32 inputs.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The output [B, Hq, S, D].
    pub out: Tensor,
    /// The log-sum-exp [B, Hq, S]; -inf in rows that see nothing.
    pub lse: Tensor,
    /// The gradient of the queries [B, Hq, S, D].
    pub dq: Tensor,
    /// The gradient of the keys [B, Hkv, S, D].
    pub dk: Tensor,
    /// The gradient of the values [B, Hkv, S, D].
    pub dv: Tensor,
}

impl Question {
    fn on(&self, device: &Device) -> Result<Question> {
        let [q, k, v, gradient] =
            [&self.q, &self.k, &self.v, &self.gradient].map(|tensor| tensor.to_device(device));
        Ok(Question { q: q?, k: k?, v: v?, gradient: gradient?, ..self.clone() })
    }

    /// The question with its tensors rounded to `dtype`.
    pub(super) fn to_dtype(&self, dtype: DType) -> Result<Question> {
        let [q, k, v, gradient] =
            [&self.q, &self.k, &self.v, &self.gradient].map(|tensor| tensor.to_dtype(dtype));
        Ok(Question { q: q?, k: k?, v: v?, gradient: gradient?, ..self.clone() })
    }
}

impl Answer {
    /// The answer with `change` applied to each tensor.
    fn map(&self, change: impl Fn(&Tensor) -> Result<Tensor>) -> Result<Answer> {
        let Answer { out, lse, dq, dk, dv } = self;
        let [out, lse, dq, dk, dv] = [out, lse, dq, dk, dv].map(change);
        Ok(Answer { out: out?, lse: lse?, dq: dq?, dk: dk?, dv: dv? })
    }
}

/// How attention over a whole sequence is split over ranks.
#[derive(Clone, Debug)]
pub struct Split {
    /// The strategy by which the sequence is split.
    pub strategy: Strategy,
    /// How positions are sharded; `None`: the strategy's own layout.
    pub layout: Option<Layout>,
    /// The number of ranks.
    pub ranks: usize,
    /// The proportions of positions that ranks hold, one number each; `None`: all alike.
    pub weights: Option<Vec<usize>>,
    /// The backward route of KV and gradients.
    pub route: Route,
    /// The attention kernel.
    pub kernel: Kernel,
    /// Whether the kernel gives the same bits every time, on a GPU too.
    pub deterministic: bool,
    /// The deadline: how long a rank waits for one that shows no progress.
    pub deadline: Duration,
    /// Cores of this machine that the ranks of this process share.
    pub cores: Cores,
    /// The processes, which share the ranks evenly.
    pub processes: World,
    /// The devices that ranks compute on, if not the CPU.
    pub processors: Processors,
}

impl Split {
    /// The proved schedules of all ranks for `question`.
    fn schedules(&self, question: &Question) -> std::result::Result<Schedules, TrainError> {
        let Question { q, k, mask, .. } = question;
        let heads = Heads { query: q.dim(1)?, key_value: k.dim(1)? };
        let own = Setting::new(self.strategy, q.dim(2)?, self.ranks, heads);
        let setting = Setting {
            layout: self.layout.unwrap_or(own.layout),
            weights: self.weights.clone().unwrap_or(own.weights),
            route: self.route,
            ..own
        };
        Ok(setting.schedules(mask)?)
    }

    /// The backend of rank `rank`.
    fn backend(&self, rank: usize) -> Backend {
        let here = self.ranks / self.processes.processes();
        match self.processors.of(rank % here, here) {
            Some(processor) => Backend::Gpu(processor.clone()),
            None => Backend::Cpu(Pool::share(&self.cores, here, || ())),
        }
    }

    fn kernel(&self, backend: &Backend) -> Arc<dyn AttentionKernel> {
        kernel(self.kernel, self.deterministic, false, backend)
    }
}

/// Shards the rows of `question` over ranks, runs forward and backward, and joins the rows in order: the same answer in every process.
///
/// # Errors
/// A split that cannot run, processes that cannot share its ranks, and any failure of a rank.
pub fn attend(question: &Question, split: &Split) -> std::result::Result<Answer, TrainError> {
    let options = Options { world: split.ranks, deadline: split.deadline, stop: Arc::default() };
    let all_alike = |error| once(&split.processes, error);
    ranks_here(&split.processes, split.ranks).map_err(all_alike)?;
    split.processes.computes_on(&split.processors.device(0));
    device::check(split.strategy, None, &split.processors).map_err(all_alike)?;
    let schedules = Arc::new(split.schedules(question).map_err(all_alike)?);
    let positions = &schedules.of(Pass::Forward).positions;
    device::check_tokens(positions, &split.processors).map_err(all_alike)?;
    let processes =
        split.processes.clone().with_device_copy(split.processors.device_copy(split.ranks));
    let mut found = processes.run(&options, |comm| {
        let (schedules, backend) = (schedules.clone(), split.backend(comm.rank()));
        let kernel = split.kernel(&backend);
        let attention = Attention::new(schedules, question.scale, comm.clone(), kernel);
        gathered(comm.as_ref(), attend_here(question, &attention, &backend.device())?)
    })?;
    Ok(join(positions, &found.swap_remove(0))?)
}

/// Attention of one block of queries over one block of KV, at any positions: one rank, one tile.
///
/// # Errors
/// Failures of the kernel, and a mask that needs more than one softmax for a query.
pub fn attend_tile(
    question: &Question,
    queries: &Positions,
    keys: &Positions,
    split: &Split,
) -> std::result::Result<Answer, TrainError> {
    let backend = split.backend(0);
    let Question { q, k, v, gradient, mask, scale } = &question.on(&backend.device())?;
    let kernel = split.kernel(&backend);
    let views = views(mask, queries, keys)?;
    let tiles: Vec<Tile<'_>> = views.iter().map(|view| Tile::new(k, v, &view.visibility)).collect();
    let mut state = kernel.begin(q, *scale)?;
    kernel.forward(&tiles, &mut *state, &|| Ok(()))?;
    let attended = kernel.finish(state)?;
    let mut state = kernel.begin_backward(q, &attended, gradient, *scale)?;
    let zeros = || Tensor::zeros(k.shape(), DType::F32, k.device());
    let mut gradients = KeyValueGradients { dk: zeros()?, dv: zeros()? };
    for tile in tiles {
        let tile = BackwardTile { tile, carried: Some(gradients) };
        gradients = kernel.backward(vec![tile], &mut *state, &|| Ok(()))?.swap_remove(0);
    }
    let Attended { out, lse } = attended;
    let KeyValueGradients { dk, dv } = gradients;
    let answer = Answer { out, lse, dq: kernel.finish_backward(state)?, dk, dv };
    Ok(answer.map(|tensor| tensor.to_device(&Device::Cpu))?)
}

/// The views of a tile, each of which has all its rows and columns.
fn views(
    mask: &Mask,
    queries: &Positions,
    keys: &Positions,
) -> std::result::Result<Vec<View>, TrainError> {
    let views = View::all(mask, queries, keys);
    let is_whole = |view: &View| {
        let [rows, columns] = [view.queries.rows, view.keys.rows];
        rows.are_all_of(queries.tokens()) && columns.are_all_of(keys.tokens())
    };
    if views.iter().all(is_whole) {
        return Ok(views);
    }
    Err(TrainError::configuration(
        "a strided mask is not computed on a block of queries against a block of keys",
        "give the whole sequence: positions 0, 1, .. of queries and of keys",
    ))
}

fn attend_here(question: &Question, attention: &Attention, device: &Device) -> Result<Answer> {
    let Question { q, k, v, gradient, .. } = question;
    let rows = |tensor: &Tensor| rows_at(tensor, 2, attention.positions())?.to_device(device);
    let qkv = Qkv { q: rows(q)?, k: rows(k)?, v: rows(v)? };
    let attended = attention.forward(CallSite::default(), &qkv)?;
    let back = attention.backward(CallSite::default(), qkv, attended.clone(), rows(gradient)?)?;
    let answer =
        Answer { out: attended.out, lse: attended.lse, dq: back.q, dk: back.k, dv: back.v };
    answer.map(|tensor| tensor.to_device(&Device::Cpu))
}

/// The answers of all ranks, by rank.
fn gathered(comm: &dyn Communicator, own: Answer) -> std::result::Result<Vec<Answer>, TrainError> {
    let Answer { out, lse, dq, dk, dv } = own;
    let of_tensors = [out, lse, dq, dk, dv].into_iter().enumerate().map(|(hop, tensor)| {
        let label = Label { pass: "answer", hop, ..Label::default() };
        Ok(comm.all_gather(label, &tensor)?.into_iter())
    });
    let mut of_tensors = of_tensors.collect::<std::result::Result<Vec<_>, TrainError>>()?;
    let mut next = |at: usize| of_tensors[at].next();
    let of_rank = |_| {
        let (out, lse, dq, dk, dv) = (next(0)?, next(1)?, next(2)?, next(3)?, next(4)?);
        Some(Answer { out, lse, dq, dk, dv })
    };
    Ok((0..comm.world_size()).map_while(of_rank).collect())
}

/// Joins the rows of all ranks in the order of positions.
fn join(positions: &[Positions], parts: &[Answer]) -> Result<Answer> {
    let order: Vec<usize> = positions.iter().flat_map(Positions::iter).collect();
    let mut place = vec![0; order.len()];
    for (row, &position) in order.iter().enumerate() {
        place[position] = row as u32;
    }
    let place = Tensor::new(place, &Device::Cpu)?;
    let join = |of: fn(&Answer) -> &Tensor| {
        let parts: Vec<&Tensor> = parts.iter().map(of).collect();
        Tensor::cat(&parts, 2)?.contiguous()?.index_select(&place, 2)?.to_dtype(DType::F32)
    };
    Ok(Answer {
        out: join(|answer| &answer.out)?,
        lse: join(|answer| &answer.lse)?,
        dq: join(|answer| &answer.dq)?,
        dk: join(|answer| &answer.dk)?,
        dv: join(|answer| &answer.dv)?,
    })
}
