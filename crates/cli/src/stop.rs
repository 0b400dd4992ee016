//! SIGTERM and SIGINT as a request to stop, which whatever takes long looks at.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};

use signal_hook::consts::{SIGINT, SIGTERM};

use crate::failure::{Failure, INTERNAL};

static FLAG: LazyLock<Arc<AtomicBool>> = LazyLock::new(Arc::default);

/// From now on the first of them sets the flag that is given, and a second ends the process at once.
pub(crate) fn watch() -> Result<Arc<AtomicBool>, Failure> {
    for signal in [SIGTERM, SIGINT] {
        let set = || {
            signal_hook::flag::register_conditional_shutdown(signal, 130, FLAG.clone())?;
            signal_hook::flag::register(signal, FLAG.clone())
        };
        set().map_err(|error| {
            Failure::new(INTERNAL, format!("cannot watch signals: {error}"), None)
        })?;
    }
    Ok(FLAG.clone())
}

/// Whether one of them came. Where nobody watches, they end the process.
pub(crate) fn is_asked_for() -> bool {
    FLAG.load(Ordering::Relaxed)
}
