//! What MPI says once it has begun.

use annulus_mpi::Session;

/// What MPI says of itself and of this process.
#[derive(Clone, Debug)]
pub struct Facts {
    /// The number of this process.
    pub process: usize,
    /// How many there are.
    pub processes: usize,
    /// The library's own first line.
    pub library: String,
    /// Its file.
    pub path: std::path::PathBuf,
    /// The level of threads that it promised, as the standard of MPI calls it.
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
