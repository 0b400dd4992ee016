//! Facts that MPI states once it has begun.

use annulus_mpi::Session;

/// What MPI says of itself and of this process.
#[derive(Clone, Debug)]
pub struct Facts {
    /// The number of this process.
    pub process: usize,
    /// The number of processes.
    pub processes: usize,
    /// The first line of the library's description of itself.
    pub library: String,
    /// The library's file.
    pub path: std::path::PathBuf,
    /// The level of threads that the library promised, as the standard of MPI names it.
    pub thread_level: &'static str,
}

impl Facts {
    pub(super) fn of(session: &Session) -> Facts {
        Facts {
            process: session.rank,
            processes: session.size,
            library: session.version(),
            path: session.path.clone(),
            thread_level: session.thread_level,
        }
    }
}
