//! Which process of a job ends first: what its launcher does not tell, and what nobody can write down who is killed.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

#[cfg(target_os = "linux")]
use annulus_comm::flight::{Death, life, now};
use annulus_comm::flight::{Seen, Stood, Wreck};
#[cfg(target_os = "linux")]
use rustix::{
    event::{Timespec, epoll},
    fd::OwnedFd,
    fs::{CWD, FileType, Mode, OFlags, mknodat, open},
};

/// The processes of a job, by pipes that each holds for as long as it lives.
pub(super) struct Watch {
    /// Our ends of the pipes, and what tells of ends in their order. `None`: the system cannot.
    #[cfg(target_os = "linux")]
    pipes: Option<(OwnedFd, Vec<OwnedFd>)>,
    seen: Seen,
    /// Where the first records are, and when they were looked at last.
    records: (PathBuf, Instant),
    stood: Option<Vec<Stood>>,
}

/// How often records are looked at while a job runs.
const GLANCE: Duration = Duration::from_millis(100);

#[cfg(target_os = "linux")]
impl Watch {
    /// Lays a pipe for each of the processes, in the folder of their first records.
    pub(super) fn new(folder: &Path, processes: usize) -> Watch {
        let pipes = || -> rustix::io::Result<_> {
            let queue = epoll::create(epoll::CreateFlags::CLOEXEC)?;
            let mut ends = Vec::new();
            for number in 0..processes {
                let path = life(folder, number);
                mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0)?;
                let end = open(
                    &path,
                    OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC,
                    Mode::empty(),
                )?;
                // Told once, when the last who can write is gone.
                let once = epoll::EventFlags::HUP | epoll::EventFlags::ONESHOT;
                epoll::add(&queue, &end, epoll::EventData::new_u64(number as u64), once)?;
                ends.push(end);
            }
            Ok((queue, ends))
        };
        // Without, records alone say who ended.
        Watch {
            pipes: pipes().ok(),
            seen: Seen::default(),
            records: (folder.to_owned(), Instant::now()),
            stood: None,
        }
    }

    /// Waits a moment for ends.
    fn wait(&mut self) {
        let Some((queue, _)) = &self.pipes else {
            std::thread::sleep(Duration::from_millis(5));
            return;
        };
        let moment = Timespec { tv_sec: 0, tv_nsec: 5_000_000 };
        let none =
            epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) };
        let mut events = [none; 64];
        let told = epoll::wait(queue, &mut events[..], Some(&moment)).unwrap_or_default();
        let deaths = events[..told]
            .iter()
            .map(|event| Death { number: event.data.u64() as usize, when: now() });
        self.seen.deaths.extend(deaths);
    }
}

#[cfg(not(target_os = "linux"))]
impl Watch {
    pub(super) fn new(folder: &Path, _: usize) -> Watch {
        let records = (folder.to_owned(), Instant::now());
        Watch { seen: Seen::default(), records, stood: None }
    }

    /// Waits a moment.
    fn wait(&mut self) {
        std::thread::sleep(Duration::from_millis(5));
    }
}

impl Watch {
    /// Waits a moment for ends, and notes where ranks stand once something has failed.
    pub(super) fn look(&mut self) {
        self.wait();
        let (folder, looked) = &mut self.records;
        if self.stood.is_none() && looked.elapsed() > GLANCE {
            *looked = Instant::now();
            self.stood = Wreck::of_job(folder).ok().and_then(|wreck| wreck.standing());
        }
    }

    /// What was seen, once the launcher has ended with `code`.
    pub(super) fn end(mut self, code: u8) -> Seen {
        self.look();
        self.seen.code = Some(code);
        self.seen.stood = self.stood.unwrap_or_default();
        self.seen
    }
}
