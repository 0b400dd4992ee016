//! The settings that trade time for memory, where the experiment leaves them open: the first of a list, fastest first, that fits into the
//! budget.
//!
//! Computing rows of the feed-forward half, or logits, a few at a time costs next to nothing, sharding the state costs messages that hide
//! behind computation where links are fast, and recomputing a layer about a quarter of its projections; so the list varies pieces first,
//! then logits, then the state, and recomputation last. Written settings are kept.

use crate::{ClusterDevices, Host, Memory, Recompute, State};

/// The fraction of a device's memory that its ranks may take where the experiment does not say.
const SHARE: (u64, u64) = (3, 4);
/// Bytes assumed for the machine's memory where the system does not report it.
const UNKNOWN: u64 = 8 << 30;
/// Rows of the feed-forward half that are held at once, after the choice of all rows.
const ROWS: [usize; 4] = [8192, 4096, 2048, 1024];
/// Tokens of logits that are held at once: on a CPU, more are no faster.
const LOGITS: [usize; 2] = [1024, 128];
/// The same on a GPU, where every chunk reads and writes the whole gradient of the head: for few tokens that takes as long as the product.
const LOGITS_ON_GPU: [usize; 3] = [4096, 1024, 128];

/// The settings that trade time for memory, nothing left open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settled {
    /// What of the state is sharded; never [`State::Auto`].
    pub state: State,
    /// What backward recomputes; never [`Recompute::Auto`].
    pub recompute: Recompute,
    /// Tokens whose logits are held at once.
    pub loss_chunk: usize,
    /// Rows of the feed-forward half that are held at once; all, where it is at least a micro-batch's.
    pub mlp_chunk: usize,
}

impl Memory {
    /// The written settings, and for the open ones the first choice whose `needs`, in bytes, fit into the budget; the smallest where
    /// nothing fits. What needs `u64::MAX` fits into no budget. A rank has `rows` in a micro-batch; `state` is the written one.
    pub fn settle(
        &self,
        host: &Host,
        state: State,
        rows: usize,
        needs: impl Fn(Settled) -> u64,
    ) -> Settled {
        let smallest = || self.choices(host, state, rows).pop()?.pop();
        let found = self.fitting(host, state, rows, needs).next().or_else(smallest);
        found.expect("there is always a choice: what is written, or every list's first")
    }

    /// For every open choice of the state's sharding that fits, that choice with the least recomputation and the fastest chunks that fit:
    /// in the order in which [`Memory::settle`] prefers them.
    pub fn fitting(
        &self,
        host: &Host,
        state: State,
        rows: usize,
        needs: impl Fn(Settled) -> u64,
    ) -> impl Iterator<Item = Settled> {
        // Not even without a limit does `u64::MAX` fit.
        let budget = self.budget(host).min(u64::MAX - 1);
        let choices = self.choices(host, state, rows).into_iter();
        let mut found: Vec<State> = Vec::new();
        choices.filter_map(move |chunks| {
            let open = chunks.into_iter().filter(|one| !found.contains(&one.state));
            let fitting = open.into_iter().find(|one| needs(*one) <= budget);
            found.extend(fitting.map(|one| one.state));
            fitting
        })
    }

    /// Bytes that the ranks on this machine may hold together; on GPUs, the ranks of one GPU.
    pub fn budget(&self, host: &Host) -> u64 {
        if let Some(ClusterDevices { ranks, memory, .. }) = host.cluster {
            return self.of_device(memory).unwrap_or(u64::MAX).saturating_mul(ranks as u64);
        }
        let there = host.there().map_or(UNKNOWN, |there| there.bytes);
        self.budget.unwrap_or_else(|| share(there))
    }

    /// Bytes that the ranks of a device with `memory` bytes may hold. `None`: not limited.
    pub fn of_device(&self, memory: Option<u64>) -> Option<u64> {
        let written = self.budget.map(|bytes| bytes.min(memory.unwrap_or(bytes)));
        written.or_else(|| memory.map(share))
    }

    /// This section with the settings of `settled` written out.
    #[must_use]
    pub fn with(&self, settled: Settled) -> Memory {
        let Settled { recompute, loss_chunk, mlp_chunk, .. } = settled;
        let (loss_chunk, mlp_chunk) = (Some(loss_chunk), Some(mlp_chunk));
        Memory { recompute, loss_chunk, mlp_chunk, ..self.clone() }
    }

    /// All choices for the open settings on `host`, fastest first: a list of chunks for each of recomputation and the sharding of state.
    fn choices(&self, host: &Host, state: State, rows: usize) -> Vec<Vec<Settled>> {
        let states = &states(state, host);
        let recompute = match self.recompute {
            Recompute::Auto => vec![Recompute::None, Recompute::Layer],
            written => vec![written],
        };
        let pieces = [rows].into_iter().chain(ROWS.into_iter().filter(move |piece| *piece < rows));
        let pieces: Vec<usize> =
            self.mlp_chunk.map_or_else(|| pieces.collect(), |written| vec![written]);
        let logits = if host.computes_on_gpus() { &LOGITS_ON_GPU[..] } else { &LOGITS };
        let logits = self.loss_chunk.map_or_else(|| logits.to_vec(), |written| vec![written]);
        let chunks = |recompute, state| {
            let settled =
                move |loss_chunk, mlp_chunk| Settled { state, recompute, loss_chunk, mlp_chunk };
            let of_logits = |&logits: &usize| pieces.iter().map(move |rows| settled(logits, *rows));
            logits.iter().flat_map(of_logits).collect()
        };
        let of = |recompute| states.iter().map(move |state| (recompute, *state));
        recompute
            .into_iter()
            .flat_map(of)
            .map(|(recompute, state)| chunks(recompute, state))
            .collect()
    }
}

/// The choices for the state, the one that sends least first: ranks that share a memory hold one copy in any case.
fn states(written: State, host: &Host) -> Vec<State> {
    let memories = host.cluster.map_or(host.sharing(), |devices| devices.ranks);
    match written {
        State::Auto if memories == 1 => vec![State::Replicated],
        State::Auto => vec![State::Replicated, State::Zero1, State::Zero3],
        written => vec![written],
    }
}

fn share(bytes: u64) -> u64 {
    bytes / SHARE.1 * SHARE.0
}

#[cfg(test)]
mod tests {
    use annulus_machine::{By, Limit};

    use super::*;
    use crate::Offload;

    const OPEN: Memory = Memory {
        recompute: Recompute::Auto,
        offload: Offload::None,
        offload_folder: None,
        budget: Some(1000),
        micro_batch: None,
        loss_chunk: None,
        mlp_chunk: None,
    };

    #[test]
    fn the_fastest_that_fits_is_chosen_and_else_the_smallest() {
        let settled = |needs: &dyn Fn(Settled) -> u64| {
            OPEN.settle(&Host::default(), State::Auto, 5000, needs)
        };
        let (auto, layer) = (Recompute::None, Recompute::Layer);
        let state = State::Replicated;
        let all = Settled { state, recompute: auto, loss_chunk: 1024, mlp_chunk: 5000 };
        assert_eq!(settled(&|_| 1000), all);
        assert_eq!(
            settled(&|c| (c.mlp_chunk as u64).saturating_sub(3500)),
            Settled { mlp_chunk: 4096, ..all }
        );
        let kept = |c: Settled| if c.recompute == layer { 10 } else { 2000 };
        assert_eq!(settled(&kept), Settled { recompute: layer, ..all });
        // Neither fewer logits nor a sharded state costs as much as recomputation.
        let few = |c: Settled| if c.loss_chunk == 128 { 10 } else { 2000 };
        assert_eq!(settled(&few), Settled { loss_chunk: 128, ..all });
        let smallest = Settled { state, recompute: layer, loss_chunk: 128, mlp_chunk: 1024 };
        assert_eq!(settled(&|_| 1001), smallest);
    }

    #[test]
    fn a_gpu_holds_more_logits_at_once() {
        let gpu = Host { gpu_memory: Some(80 << 30), ..Host::default() };
        let settled = |most: usize| {
            let needs = |one: Settled| if one.loss_chunk > most { 1001 } else { 1000 };
            OPEN.settle(&gpu, State::Auto, 5000, needs)
        };
        assert_eq!([9000, 1500, 200].map(|most| settled(most).loss_chunk), [4096, 1024, 128]);
        assert_eq!(settled(9000).mlp_chunk, 5000);
        let of_cluster = |are_gpus| {
            let memory = Some(1 << 30);
            let cluster = Some(ClusterDevices { ranks: 8, memory, offload: None, are_gpus });
            let host = Host { cluster, ..Host::default() };
            let open = Memory { budget: None, ..OPEN };
            open.settle(&host, State::Auto, 5000, |_| 1).loss_chunk
        };
        assert_eq!([true, false].map(of_cluster), [4096, 1024]);
    }

    #[test]
    fn a_budget_is_a_share_of_the_device_unless_it_is_written() {
        let gpu = Host { gpu_memory: Some(80 << 30), ..Host::default() };
        let open = Memory { budget: None, ..OPEN };
        let there = Limit { bytes: 80 << 30, by: By::Gpu };
        assert_eq!((open.budget(&gpu), gpu.there()), (60 << 30, Some(there)));
        assert_eq!(OPEN.budget(&gpu), 1000);
    }

    #[test]
    fn a_budget_is_of_each_device_of_a_cluster() {
        let host = |memory| {
            let cluster = Some(ClusterDevices { ranks: 8, memory, offload: None, are_gpus: true });
            Host { cluster, ..Host::default() }
        };
        let open = Memory { budget: None, ..OPEN };
        let budget = |memory: &Memory, there| memory.budget(&host(there));
        assert_eq!([budget(&open, Some(80)), budget(&open, None)], [8 * 60, u64::MAX]);
        // A budget beyond the device's memory is cut to it.
        let written = [Some(5000), Some(500), None].map(|there| budget(&OPEN, there));
        assert_eq!(written, [8000, 4000, 8000]);
    }

    #[test]
    fn what_is_written_stays() {
        let written =
            Memory { recompute: Recompute::None, loss_chunk: Some(7), mlp_chunk: Some(9), ..OPEN };
        let state = State::Zero1;
        let settled = written.settle(&Host::default(), state, 5000, |_| u64::MAX);
        let wanted = Settled { state, recompute: Recompute::None, loss_chunk: 7, mlp_chunk: 9 };
        assert_eq!(settled, wanted);
        assert_eq!(written.with(settled), written);
    }

    #[test]
    fn processes_share_as_much_of_the_state_as_it_takes() {
        let host = Host { processes: 2, ..Host::default() };
        let settled = |state, least| {
            let needs = |c: Settled| if c.state == least { 1000 } else { 1001 };
            OPEN.settle(&host, state, 100, needs).state
        };
        for least in [State::Replicated, State::Zero1, State::Zero3] {
            assert_eq!(settled(State::Auto, least), least);
        }
        assert_eq!(settled(State::Zero2, State::Zero1), State::Zero2);
        let needs = |c: Settled| {
            let is_less = c.state == State::Zero3 || c.recompute == Recompute::Layer;
            if is_less { 1000 } else { 1001 }
        };
        let sharded = OPEN.settle(&host, State::Auto, 100, needs);
        assert_eq!((sharded.state, sharded.recompute), (State::Zero3, Recompute::None));
        let all = OPEN.fitting(&host, State::Auto, 100, needs).map(|c| (c.state, c.recompute));
        let layer = Recompute::Layer;
        let wanted =
            [(State::Zero3, Recompute::None), (State::Replicated, layer), (State::Zero1, layer)];
        assert_eq!(all.collect::<Vec<_>>(), wanted);
        let device = |ranks| {
            let cluster =
                Some(ClusterDevices { ranks, memory: None, offload: None, are_gpus: true });
            Host { cluster, ..Host::default() }
        };
        let smallest = |host: Host| OPEN.settle(&host, State::Auto, 100, |_| u64::MAX).state;
        assert_eq!(smallest(Host::default()), State::Replicated);
        assert_eq!([1, 2].map(device).map(smallest), [State::Replicated, State::Zero3]);
    }
}
