//! The functions of NCCL that we call, and their types and constants.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::mem::ManuallyDrop;
use std::path::Path;

use libloading::os::unix::{Library as Loaded, RTLD_LOCAL, RTLD_NOW};

use crate::{Error, Result};

/// `ncclComm_t`, a pointer to a communicator.
pub(crate) type Handle = *mut c_void;

/// What a call returns that succeeded, and one of a non-blocking communicator that is still in progress (`ncclResult_t`).
pub(crate) const SUCCESS: c_int = 0;
pub(crate) const IN_PROGRESS: c_int = 7;
/// The data type of all that is sent: bytes (`ncclDataType_t`).
pub(crate) const BYTES: c_int = 1;
/// The oldest version that is used, as NCCL numbers them: since then all calls made here can be non-blocking.
const OLDEST: c_int = 21_800;
/// `NCCL_CONFIG_UNDEF_INT`: a number of the configuration that is not given.
const NOT_GIVEN: c_int = c_int::MIN;

/// `ncclUniqueId`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct RawId(pub(crate) [c_char; 128]);

/// `ncclConfig_t` as of 2.18: later versions accept it, as it states its size and version.
#[repr(C)]
pub(crate) struct Config {
    size: usize,
    magic: c_uint,
    version: c_uint,
    blocking: c_int,
    cluster_size: c_int,
    least_blocks: c_int,
    most_blocks: c_int,
    network: *const c_char,
    split_share: c_int,
}

impl Config {
    /// The configuration of a communicator whose calls do not block.
    pub(crate) fn non_blocking() -> Config {
        Config {
            size: size_of::<Config>(),
            magic: 0xcafe_beef,
            version: OLDEST as c_uint,
            blocking: 0,
            cluster_size: NOT_GIVEN,
            least_blocks: NOT_GIVEN,
            most_blocks: NOT_GIVEN,
            network: std::ptr::null(),
            split_share: NOT_GIVEN,
        }
    }
}

/// Declares a table of functions, which are found by their names.
macro_rules! calls {
    ($($field:ident = $name:literal: fn($($argument:ty),*) -> $returned:ty;)*) => {
        /// The functions that we call.
        pub(crate) struct Calls {
            $(pub(crate) $field: unsafe extern "C" fn($($argument),*) -> $returned,)*
        }

        impl Calls {
            /// Looks all of them up; the error is the name of one that is missing.
            fn of(loaded: &Loaded) -> std::result::Result<Calls, &'static str> {
                // SAFETY: the types are those of the functions of these names in `nccl.h`, the same since 2.18; `Library` keeps
                // the library as long as it keeps them.
                Ok(Calls { $($field: unsafe { *loaded.get($name.as_bytes()).map_err(|_| $name)? },)* })
            }
        }
    };
}

calls! {
    version = "ncclGetVersion": fn(*mut c_int) -> c_int;
    draw_id = "ncclGetUniqueId": fn(*mut RawId) -> c_int;
    init = "ncclCommInitRankConfig": fn(*mut Handle, c_int, RawId, c_int, *mut Config) -> c_int;
    state = "ncclCommGetAsyncError": fn(Handle, *mut c_int) -> c_int;
    finalize = "ncclCommFinalize": fn(Handle) -> c_int;
    destroy = "ncclCommDestroy": fn(Handle) -> c_int;
    abort = "ncclCommAbort": fn(Handle) -> c_int;
    group_start = "ncclGroupStart": fn() -> c_int;
    group_end = "ncclGroupEnd": fn() -> c_int;
    send = "ncclSend": fn(*const c_void, usize, c_int, c_int, Handle, *mut c_void) -> c_int;
    receive = "ncclRecv": fn(*mut c_void, usize, c_int, c_int, Handle, *mut c_void) -> c_int;
    error_text = "ncclGetErrorString": fn(c_int) -> *const c_char;
    last_error = "ncclGetLastError": fn(Handle) -> *const c_char;
}

/// A library of NCCL.
pub struct Library {
    pub(crate) calls: Calls,
    version: c_int,
    /// Streams of the host, if this is our emulated library.
    #[cfg(feature = "emulator")]
    pub(crate) streams: Option<crate::emulated::Streams>,
    /// Keeps the functions of `calls` loaded; never unloaded, since threads of the library may outlive a clique that was given up.
    _loaded: ManuallyDrop<Loaded>,
}

impl std::fmt::Debug for Library {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Library").field("version", &self.version).finish_non_exhaustive()
    }
}

impl Library {
    /// Loads the library at `path`, or of that name where the system looks.
    pub(crate) fn load(path: &Path) -> Result<Library> {
        let what = || format!("cannot load NCCL from `{}`", path.display());
        // The system's reason is the error's source.
        let failed = |error: libloading::Error| {
            let source = std::error::Error::source(&error);
            Error::new(what(), source.map_or_else(|| error.to_string(), ToString::to_string))
        };
        // SAFETY: loading runs the library's own initialisers; it is the system's, or what the user named.
        let loaded = unsafe { Loaded::open(Some(path), RTLD_NOW | RTLD_LOCAL) }.map_err(failed)?;
        let calls =
            Calls::of(&loaded).map_err(|name| Error::new(what(), format!("it has no `{name}`")))?;
        #[cfg(feature = "emulator")]
        let streams = crate::emulated::Streams::of(&loaded);
        let mut library = Library {
            calls,
            version: 0,
            #[cfg(feature = "emulator")]
            streams,
            _loaded: ManuallyDrop::new(loaded),
        };
        let mut version = 0;
        // SAFETY: the number is written into a variable that lives.
        let code = unsafe { (library.calls.version)(&raw mut version) };
        library.expect("ncclGetVersion", code)?;
        library.version = version;
        if version < OLDEST {
            let why = format!("it is {}, and 2.18 or later is needed", library.version());
            return Err(Error::new(what(), why));
        }
        Ok(library)
    }

    /// The version of the library, such as `2.28.9`.
    pub fn version(&self) -> String {
        let number = self.version;
        format!("{}.{}.{}", number / 10_000, number / 100 % 100, number % 100)
    }

    /// Returns an error unless `code`, which the call `what` returned, is success or in progress.
    pub(crate) fn expect(&self, what: &str, code: c_int) -> Result<()> {
        if [SUCCESS, IN_PROGRESS].contains(&code) { Ok(()) } else { Err(self.error(what, code)) }
    }

    /// The error of a call that returned `code`, with NCCL's own text.
    pub(crate) fn error(&self, what: &str, code: c_int) -> Error {
        // SAFETY: both return texts that live as long as the library; without a communicator the text is of this thread's last error.
        let texts = unsafe {
            [(self.calls.error_text)(code), (self.calls.last_error)(std::ptr::null_mut())]
        };
        let texts = texts.map(|text| {
            if text.is_null() {
                return String::new();
            }
            // SAFETY: a text of the library, which ends with a zero.
            unsafe { CStr::from_ptr(text) }.to_string_lossy().trim().to_owned()
        });
        let [mut why, more] = texts;
        if !more.is_empty() {
            why = format!("{why} ({})", more.lines().next().unwrap_or_default());
        }
        Error::new(what, why)
    }
}

// SAFETY: functions and numbers; NCCL's functions may be called from any thread, and what they share is the communicator's.
unsafe impl Send for Library {}
// SAFETY: as above.
unsafe impl Sync for Library {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_configuration_has_the_bytes_of_2_18() {
        assert_eq!(size_of::<Config>(), 48);
        assert_eq!(std::mem::offset_of!(Config, network), 32);
        assert_eq!(std::mem::offset_of!(Config, split_share), 40);
        assert_eq!(size_of::<RawId>(), 128);
    }
}
