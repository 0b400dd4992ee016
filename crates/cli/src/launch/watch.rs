//! Which process of a job ends first: what its launcher does not tell, and what nobody can write down who is killed.

use std::path::{Path, PathBuf};

use annulus_comm::flight::{Record, Seen};
#[cfg(target_os = "linux")]
use rustix::{
    event::{Timespec, epoll},
    fd::OwnedFd,
    process::{Pid, PidfdFlags, pidfd_open},
};

/// The processes of a job, by the records that they begin with.
pub(super) struct Watch {
    /// Where those records are.
    folder: PathBuf,
    processes: usize,
    /// By process, what tells of its end; none before its record is there.
    #[cfg(target_os = "linux")]
    ends: Vec<Option<OwnedFd>>,
    /// Tells of ends in their order. `None`: the system cannot.
    #[cfg(target_os = "linux")]
    queue: Option<OwnedFd>,
    seen: Seen,
}

#[cfg(target_os = "linux")]
impl Watch {
    pub(super) fn new(folder: &Path, processes: usize) -> Watch {
        Watch {
            folder: folder.to_owned(),
            processes,
            ends: (0..processes).map(|_| None).collect(),
            queue: epoll::create(epoll::CreateFlags::CLOEXEC).ok(),
            seen: Seen::default(),
        }
    }

    /// Waits a moment for ends.
    pub(super) fn look(&mut self) {
        self.meet();
        let Some(queue) = &self.queue else { return };
        let moment = Timespec { tv_sec: 0, tv_nsec: 5_000_000 };
        let mut events = [epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) }; 64];
        // Where the system cannot tell, records alone say who ended.
        let told = epoll::wait(queue, &mut events[..], Some(&moment)).unwrap_or_default();
        for event in &events[..told] {
            let process = event.data.u64() as usize;
            self.dead(process);
        }
    }

    /// Begins to watch the processes whose records have come.
    fn meet(&mut self) {
        let Some(queue) = &self.queue else { return };
        let mut early = Vec::new();
        for process in 0..self.processes {
            if self.ends[process].is_some() || self.seen.deaths.contains(&process) {
                continue;
            }
            let Ok(record) = Record::read(&early_record(&self.folder, process)) else { continue };
            let pid = i32::try_from(record.head.pid).ok().and_then(Pid::from_raw);
            let Some(pid) = pid else { continue };
            let Ok(end) = pidfd_open(pid, PidfdFlags::empty()) else {
                early.push(process);
                continue;
            };
            let data = epoll::EventData::new_u64(process as u64);
            let once = epoll::EventFlags::IN | epoll::EventFlags::ONESHOT;
            if epoll::add(queue, &end, data, once).is_ok() {
                self.ends[process] = Some(end);
            }
        }
        // Gone before it could be watched.
        early.into_iter().for_each(|process| self.dead(process));
    }
}

#[cfg(not(target_os = "linux"))]
impl Watch {
    pub(super) fn new(folder: &Path, processes: usize) -> Watch {
        Watch { folder: folder.to_owned(), processes, seen: Seen::default() }
    }

    /// Waits a moment.
    pub(super) fn look(&mut self) {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

impl Watch {
    #[cfg(target_os = "linux")]
    fn dead(&mut self, process: usize) {
        if !self.seen.deaths.contains(&process) {
            self.seen.deaths.push(process);
        }
    }

    /// What was seen, once the launcher has ended with `code`.
    pub(super) fn end(mut self, code: u8) -> Seen {
        self.look();
        self.seen.code = Some(code);
        self.seen
    }
}

fn early_record(folder: &Path, process: usize) -> PathBuf {
    folder.join(format!("process-{process}"))
}
