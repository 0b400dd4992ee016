//! What macOS says of the machine, by `sysctl`; nothing on other systems.

/// The value of this name.
pub(crate) fn value(name: &str) -> Option<String> {
    #[cfg(target_os = "macos")]
    {
        use sysctl::Sysctl;
        let value = sysctl::Ctl::new(name).ok()?.value_string().ok()?;
        Some(value.trim().to_owned()).filter(|value| !value.is_empty())
    }
    #[cfg(not(target_os = "macos"))]
    {
        let _ = name;
        None
    }
}

/// The whole number of this name.
pub(crate) fn count(name: &str) -> Option<usize> {
    value(name)?.parse().ok()
}
