//! Libraries that panic on input they do not expect: here a panic is an error, and nothing is printed of it.

use std::any::Any;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};
use std::sync::Once;

thread_local! {
    /// Whether a panic of this thread is caught and told by [`guarded`].
    static CAUGHT: Cell<bool> = const { Cell::new(false) };
}

/// What `call` gives.
///
/// # Errors
/// The message of its panic. What it was about to change is to be dropped.
pub(crate) fn guarded<T>(call: impl FnOnce() -> T) -> Result<T, String> {
    static QUIET: Once = Once::new();
    QUIET.call_once(|| {
        let hook = take_hook();
        set_hook(Box::new(move |panic| {
            if !CAUGHT.get() {
                hook(panic);
            }
        }));
    });
    let before = CAUGHT.replace(true);
    let result = catch_unwind(AssertUnwindSafe(call));
    CAUGHT.set(before);
    result.map_err(|panic| said(&*panic))
}

fn said(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("it panicked without a message").to_owned()
}

#[cfg(test)]
mod tests {
    use super::guarded;

    #[test]
    fn a_panic_is_an_error() {
        assert_eq!(guarded(|| 7), Ok(7));
        let failed = guarded(|| -> u32 { panic!("byte {} is odd", 3) });
        assert_eq!(failed, Err("byte 3 is odd".to_owned()));
    }
}
