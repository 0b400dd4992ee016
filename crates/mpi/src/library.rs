//! The functions of MPI that we call, and the constants in which implementations differ.

use std::ffi::{c_char, c_int, c_void};
use std::path::Path;

use libloading::os::unix::{Library as Loaded, RTLD_GLOBAL, RTLD_NOW};

use crate::signals::keeping_stops;
use crate::{Error, Result};

/// A handle of MPI: a pointer, or under MPICH's own ABI an `int`, which fits into as many bits.
pub(crate) type Handle = u64;

/// Libraries with the same ABI, and so with the same constants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// The standard ABI (MPI 5.0, chapter 20).
    Standard,
    /// Open MPI: handles are addresses of symbols.
    OpenMpi,
    /// MPICH, and libraries with its ABI: Intel MPI, Cray MPICH, MVAPICH.
    Mpich,
}

/// The constants that a program passes to MPI.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Constants {
    pub(crate) world: Handle,
    pub(crate) byte: Handle,
    pub(crate) errors_return: Handle,
    /// Whether handles in arrays are `int`s instead of pointers.
    pub(crate) are_numbers: bool,
    /// The levels of threads, in the order of [`LEVELS`].
    pub(crate) levels: [c_int; 4],
}

/// The names of the levels of threads in the standard.
const LEVELS: [&str; 4] =
    ["MPI_THREAD_SINGLE", "MPI_THREAD_FUNNELED", "MPI_THREAD_SERIALIZED", "MPI_THREAD_MULTIPLE"];

/// A library of MPI that is loaded.
pub(crate) struct Library {
    pub(crate) calls: Calls,
    pub(crate) constants: Constants,
    /// Keeps the functions of `calls` loaded.
    _loaded: Loaded,
}

/// What a call returns that succeeded.
pub(crate) const SUCCESS: c_int = 0;

/// Declares a table of functions, which are found by their names.
macro_rules! calls {
    ($($field:ident = $name:literal: fn($($argument:ty),*);)*) => {
        /// The functions that we call.
        pub(crate) struct Calls {
            $(pub(crate) $field: unsafe extern "C" fn($($argument),*) -> c_int,)*
        }

        impl Calls {
            fn of(loaded: &Loaded) -> std::result::Result<Calls, libloading::Error> {
                // SAFETY: the types are those of the functions of these names in the standard of MPI; `Library` keeps the
                // library as long as it keeps them.
                Ok(Calls { $($field: unsafe { *loaded.get($name)? },)* })
            }
        }
    };
}

calls! {
    init = b"MPI_Init_thread\0": fn(*mut c_int, *mut *mut *mut c_char, c_int, *mut c_int);
    finalize = b"MPI_Finalize\0": fn();
    abort = b"MPI_Abort\0": fn(Handle, c_int);
    rank = b"MPI_Comm_rank\0": fn(Handle, *mut c_int);
    size = b"MPI_Comm_size\0": fn(Handle, *mut c_int);
    on_error = b"MPI_Comm_set_errhandler\0": fn(Handle, Handle);
    send = b"MPI_Isend\0": fn(*const c_void, c_int, Handle, c_int, c_int, Handle, *mut Handle);
    receive = b"MPI_Irecv\0": fn(*mut c_void, c_int, Handle, c_int, c_int, Handle, *mut Handle);
    test_any = b"MPI_Testany\0": fn(c_int, *mut Handle, *mut c_int, *mut c_int, *mut c_void);
    count = b"MPI_Get_count\0": fn(*const c_void, Handle, *mut c_int);
    cancel = b"MPI_Cancel\0": fn(*mut Handle);
    text = b"MPI_Error_string\0": fn(c_int, *mut c_char, *mut c_int);
    version = b"MPI_Get_library_version\0": fn(*mut c_char, *mut c_int);
}

/// What an error of the loader says: the system's reason is its source.
fn reason(error: &libloading::Error) -> String {
    let source = std::error::Error::source(error);
    source.map_or_else(|| error.to_string(), ToString::to_string)
}

impl Library {
    /// Loads the library at `path`, or of that name where the system looks.
    pub(crate) fn load(path: &Path) -> Result<(Library, Family)> {
        let failed = |error: libloading::Error| Error {
            what: format!("cannot load MPI from `{}`", path.display()),
            why: reason(&error),
        };
        // SAFETY: loading runs the library's own initialisers; it is what the launcher's `mpirun` belongs to, or what the user
        // named. Global: libraries of MPI load parts of themselves that look for their symbols.
        let open = || unsafe { Loaded::open(Some(path), RTLD_NOW | RTLD_GLOBAL) };
        let loaded = keeping_stops(open).map_err(failed)?;
        let calls = Calls::of(&loaded).map_err(failed)?;
        let family = Family::of(&loaded, path);
        let constants = Constants::of(&loaded, family).map_err(failed)?;
        Ok((Library { calls, constants, _loaded: loaded }, family))
    }

    /// The first line of the library's description of itself, up to a comma; it can be read before MPI has begun.
    pub(crate) fn version(&self) -> String {
        let mut text = vec![0u8; VERSION];
        let mut length: c_int = 0;
        // SAFETY: the buffer is larger than every implementation's MPI_MAX_LIBRARY_VERSION_STRING.
        let code = unsafe { (self.calls.version)(text.as_mut_ptr().cast(), &raw mut length) };
        if code != SUCCESS {
            return String::from("of unknown version");
        }
        let all = String::from_utf8_lossy(&text[..(length as usize).min(VERSION)]).into_owned();
        let first = all.split(['\n', ',', '\0']).next().unwrap_or_default();
        first.split_whitespace().collect::<Vec<_>>().join(" ")
    }

    /// The error of a call that returned `code`, with MPI's own text.
    pub(crate) fn error(&self, what: &str, code: c_int) -> Error {
        let mut text = [0u8; TEXT];
        let mut length: c_int = 0;
        // SAFETY: the buffer is as large as every implementation's MPI_MAX_ERROR_STRING.
        let told = unsafe { (self.calls.text)(code, text.as_mut_ptr().cast(), &raw mut length) };
        let why = match told {
            SUCCESS => String::from_utf8_lossy(&text[..(length as usize).min(TEXT)]).into_owned(),
            _ => format!("error {code}"),
        };
        Error { what: what.to_owned(), why }
    }
}

/// The longest text of a version.
const VERSION: usize = 16_384;
/// Bytes of an error text, at least as many as any implementation's longest.
const TEXT: usize = 4096;

impl Family {
    fn of(loaded: &Loaded, path: &Path) -> Family {
        // First the name: Open MPI's own symbols are also found where its library only stands below the standard's.
        if path.file_name().unwrap_or_default().to_string_lossy().contains("mpi_abi") {
            return Family::Standard;
        }
        // SAFETY: only looked for, not read.
        let is_open = unsafe { loaded.get::<*const c_void>(b"ompi_mpi_comm_world\0") }.is_ok();
        if is_open { Family::OpenMpi } else { Family::Mpich }
    }

    /// The name of the family.
    pub fn name(self) -> &'static str {
        match self {
            Family::Standard => "MPI 5.0's ABI",
            Family::OpenMpi => "Open MPI",
            Family::Mpich => "MPICH's ABI",
        }
    }
}

impl Constants {
    fn of(loaded: &Loaded, family: Family) -> std::result::Result<Constants, libloading::Error> {
        let address = |name: &[u8]| {
            // SAFETY: the address is the handle; nothing is read there.
            let symbol = unsafe { loaded.get::<*const c_void>(name) }?;
            Ok(symbol.into_raw().cast::<c_void>() as Handle)
        };
        Ok(match family {
            Family::Standard => {
                let levels = [0, 1024, 2048, 4096];
                Constants {
                    world: 0x101,
                    byte: 0x247,
                    errors_return: 0x143,
                    are_numbers: false,
                    levels,
                }
            }
            Family::Mpich => Constants {
                world: 0x4400_0000,
                byte: 0x4c00_010d,
                errors_return: 0x5400_0001,
                are_numbers: true,
                levels: [0, 1, 2, 3],
            },
            Family::OpenMpi => Constants {
                world: address(b"ompi_mpi_comm_world\0")?,
                byte: address(b"ompi_mpi_byte\0")?,
                errors_return: address(b"ompi_mpi_errors_return\0")?,
                are_numbers: false,
                levels: [0, 1, 2, 3],
            },
        })
    }

    /// `MPI_THREAD_FUNNELED`: only the thread that began MPI calls it.
    pub(crate) fn funneled(&self) -> c_int {
        self.levels[1]
    }

    /// The name of a level of threads.
    pub(crate) fn level(&self, level: c_int) -> &'static str {
        let found = self.levels.iter().position(|one| *one == level);
        found.map_or("a level of threads that is not in the standard", |at| LEVELS[at])
    }
}
