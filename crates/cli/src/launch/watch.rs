//! Finds out which process of a job ends first: launchers do not tell, and a process that is killed cannot record it.

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

/// Watches the processes of a job through pipes: each process holds its own open for as long as it lives.
pub(super) struct Watch {
    /// The epoll queue that reports closed pipes in their order, and our ends of the pipes. `None` if the system has no such pipes.
    #[cfg(target_os = "linux")]
    pipes: Option<(OwnedFd, Vec<OwnedFd>)>,
    seen: Seen,
    /// The folder of the first flight records, and when they were last read.
    records: (PathBuf, Instant),
    stood: Option<Vec<Stood>>,
}

/// How often flight records are read while a job runs.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

#[cfg(target_os = "linux")]
impl Watch {
    /// Makes a pipe for each of the processes, in the folder of their first records.
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
                // Reported once, when the last writer has closed it.
                let once = epoll::EventFlags::HUP | epoll::EventFlags::ONESHOT;
                epoll::add(&queue, &end, epoll::EventData::new_u64(number as u64), once)?;
                ends.push(end);
            }
            Ok((queue, ends))
        };
        // Without pipes only the records tell who ended.
        Watch {
            pipes: pipes().ok(),
            seen: Seen::default(),
            records: (folder.to_owned(), Instant::now()),
            stood: None,
        }
    }

    /// Waits a few milliseconds for processes to end.
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

    /// Waits a few milliseconds.
    fn wait(&mut self) {
        std::thread::sleep(Duration::from_millis(5));
    }
}

impl Watch {
    /// Waits a few milliseconds for processes to end, and notes where ranks stand once one has failed.
    pub(super) fn look(&mut self) {
        self.wait();
        let (folder, looked) = &mut self.records;
        if self.stood.is_none() && looked.elapsed() > POLL_INTERVAL {
            *looked = Instant::now();
            self.stood = Wreck::of_job(folder).ok().and_then(|wreck| wreck.standing());
        }
    }

    /// Everything that was seen, after the launcher has ended with `code`.
    pub(super) fn end(mut self, code: u8) -> Seen {
        self.look();
        self.seen.code = Some(code);
        self.seen.stood = self.stood.unwrap_or_default();
        self.seen
    }
}
