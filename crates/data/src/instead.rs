//! What a file is that should be a text in UTF-8, by its first bytes.

/// What a file is that should be a text in UTF-8.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Instead {
    /// Text in UTF-16.
    Utf16,
    /// A PDF.
    Pdf,
    /// A zip archive; documents of offices are such.
    Zip,
}

impl Instead {
    /// What a file of these first bytes is.
    pub(crate) fn of(bytes: &[u8]) -> Option<Instead> {
        const SIGNS: [(&[u8], Instead); 4] = [
            (b"\xff\xfe", Instead::Utf16),
            (b"\xfe\xff", Instead::Utf16),
            (b"%PDF", Instead::Pdf),
            (b"PK\x03\x04", Instead::Zip),
        ];
        SIGNS.into_iter().find(|(sign, _)| bytes.starts_with(sign)).map(|(_, instead)| instead)
    }
}

/// What is said of a file that is not UTF-8.
pub(crate) fn not_utf8(instead: Option<Instead>, offset: u64) -> String {
    match instead {
        None => format!("not UTF-8 at byte {offset}"),
        Some(Instead::Utf16) => "text in UTF-16, wanted UTF-8".to_owned(),
        Some(Instead::Pdf) => "a PDF, wanted text in UTF-8".to_owned(),
        Some(Instead::Zip) => {
            "a zip archive, as office documents are, wanted text in UTF-8".to_owned()
        }
    }
}
