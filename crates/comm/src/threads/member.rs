//! The communicator of one rank that is a thread of this process.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use candle_core::Tensor;

use super::group::Group;
use super::mail::{Message, Ticket};
use super::watch::{Due, OutsideWait, Watch};
use crate::collectives::misused;
use crate::{Communicator, Label, P2pOp, Pending, Result, Transfer, Watching, all_gather_values};

/// A rank in the world or in a group split from it.
pub(super) struct Member {
    group: Arc<Group>,
    /// The group's name, the same on all its ranks.
    name: u64,
    rank: usize,
    /// By rank of this group, its number in the world.
    members: Vec<usize>,
    /// How many messages were sent to each rank.
    sent: Vec<AtomicU64>,
    /// How many receives were posted from each rank.
    asked: Vec<AtomicU64>,
}

impl Member {
    /// `rank` in the world, whose name is larger than that of any other group.
    pub(super) fn of_world(group: &Arc<Group>, rank: usize) -> Arc<dyn Communicator> {
        Arc::new(Member::new(group.clone(), u64::MAX, rank, (0..group.world_size()).collect()))
    }

    fn new(group: Arc<Group>, name: u64, rank: usize, members: Vec<usize>) -> Member {
        let counters = || members.iter().map(|_| AtomicU64::new(0)).collect();
        let (sent, asked) = (counters(), counters());
        Member { group, name, rank, members, sent, asked }
    }

    fn ticket(&self, counters: &[AtomicU64], peer: usize) -> Ticket {
        Ticket { group: self.name, number: counters[peer].fetch_add(1, Ordering::Relaxed) }
    }

    /// What a receive waits for; `None`: `step` is a send.
    fn due(&self, label: Label, step: P2pOp) -> Option<Due> {
        let P2pOp::Receive { from, form } = step else { return None };
        let (ticket, peer) = (self.ticket(&self.asked, from), self.global_rank(from));
        Some(Due { rank: self.global_rank(self.rank), peer, label, ticket, form })
    }

    /// Sends; returns the message if the exchange is to wait until it has left.
    fn send(&self, label: Label, step: P2pOp) -> Result<Option<Due>> {
        let P2pOp::Send { tensor, to } = step else { return Ok(None) };
        let (ticket, tensor) = (self.ticket(&self.sent, to), tensor.detach());
        let (rank, peer) = (self.global_rank(self.rank), self.global_rank(to));
        let is_leaving =
            self.group.send(rank, peer, Message { ticket, label, tensor, after: None })?;
        Ok(is_leaving.then_some(Due { rank, peer, label, ticket, form: None }))
    }

    fn expect_rank(&self, label: Label, peer: usize) -> Result<()> {
        if peer < self.world_size() {
            return Ok(());
        }
        let found = format!("a move with rank {peer}");
        Err(misused(self, label, &found, &format!("one of {} ranks", self.world_size())))
    }
}

impl Communicator for Member {
    fn rank(&self) -> usize {
        self.rank
    }
    fn world_size(&self) -> usize {
        self.members.len()
    }
    fn global_rank(&self, rank: usize) -> usize {
        self.members.get(rank).copied().unwrap_or(rank)
    }
    fn deadline(&self) -> Duration {
        self.group.deadline
    }
    fn exchange(&self, label: Label, moves: Vec<P2pOp>) -> Result<Pending> {
        let rank = self.global_rank(self.rank);
        self.group.post(rank, label)?;
        for step in &moves {
            let (P2pOp::Send { to: peer, .. } | P2pOp::Receive { from: peer, .. }) = step;
            self.expect_rank(label, *peer)?;
        }
        let (sends, receives): (Vec<P2pOp>, Vec<P2pOp>) =
            moves.into_iter().partition(|step| matches!(step, P2pOp::Send { .. }));
        let dues: VecDeque<Due> =
            receives.into_iter().filter_map(|step| self.due(label, step)).collect();
        // Receives first: a send wakes MPI's thread, which polls for both.
        let asks = dues.iter().map(|due| self.group.ask(due)).fold(false, |any, asks| any | asks);
        let sent = sends.into_iter().filter_map(|step| self.send(label, step).transpose());
        let sent = sent.collect::<Result<Vec<Due>>>()?;
        self.group.posted(label, &dues)?;
        if asks {
            self.group.wake();
        }
        Ok(Pending::new(Box::new(Transferring { group: self.group.clone(), rank, dues, sent })))
    }
    fn split(&self, label: Label, color: usize, key: usize) -> Result<Arc<dyn Communicator>> {
        // Every rank offers a name; a group takes that of its first rank.
        let offer = [color as i64, key as i64, self.group.name() as i64];
        let offers = all_gather_values(self, label, &offer)?;
        let mut members = Vec::new();
        for (rank, offer) in offers.iter().enumerate() {
            if offer[0] == color as i64 {
                members.push((offer[1], rank, offer[2] as u64));
            }
        }
        members.sort_unstable();
        let name = members[0].2;
        let rank = members.iter().position(|&(_, rank, _)| rank == self.rank);
        let rank = rank.expect("this rank named its own color");
        let members = members.into_iter().map(|(_, rank, _)| self.global_rank(rank)).collect();
        Ok(Arc::new(Member::new(self.group.clone(), name, rank, members)))
    }
    fn note(&self, label: Label) {
        self.group.note(self.global_rank(self.rank), label);
    }
    fn begin_commit(&self) {
        self.group.set_committing(self.global_rank(self.rank), true);
    }
    fn end_commit(&self) {
        self.group.set_committing(self.global_rank(self.rank), false);
    }
    fn progress(&self) -> Result<()> {
        self.group.progress(self.global_rank(self.rank))
    }
    fn computes(&self) -> Result<()> {
        self.group.computes(self.global_rank(self.rank))
    }
    fn watch(&self, label: Label, peer: usize) -> Box<dyn Watching + '_> {
        if peer >= self.world_size() {
            return Box::new(NoRank { member: self, label, peer });
        }
        let (rank, peer) = (self.global_rank(self.rank), self.global_rank(peer));
        Box::new(OutsideWait::new(Watch::new(&self.group, rank, peer, label)))
    }
}

impl fmt::Debug for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Member")
            .field("rank", &self.rank)
            .field("members", &self.members)
            .finish_non_exhaustive()
    }
}

/// A wait for a rank that there is not.
struct NoRank<'a> {
    member: &'a Member,
    label: Label,
    peer: usize,
}

impl Watching for NoRank<'_> {
    fn slice(&self) -> Duration {
        Duration::ZERO
    }
    fn look(&mut self) -> Result<()> {
        self.member.expect_rank(self.label, self.peer)
    }
}

/// What an exchange still waits for.
struct Transferring {
    group: Arc<Group>,
    rank: usize,
    /// Tensors to receive.
    dues: VecDeque<Due>,
    /// Messages to wait for until they have left.
    sent: Vec<Due>,
}

impl Transfer for Transferring {
    fn poll(&mut self) -> Result<()> {
        self.group.progress(self.rank)
    }
    fn receive(&mut self) -> Result<Option<Tensor>> {
        if let Some(due) = self.dues.front() {
            let tensor = self.group.receive(due)?;
            self.dues.pop_front();
            return Ok(Some(tensor));
        }
        while let Some(sent) = self.sent.last() {
            self.group.wait_to_leave(sent)?;
            self.sent.pop();
        }
        Ok(None)
    }
}

impl Drop for Transferring {
    fn drop(&mut self) {
        for due in &self.dues {
            self.group.refuse(due);
        }
    }
}
