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
    /// Packed by gzip.
    Gzip,
    /// Packed by zstd.
    Zstd,
    /// Packed by xz.
    Xz,
    /// Packed by bzip2.
    Bzip2,
    /// A parquet file.
    Parquet,
}

impl Instead {
    /// What a file of these first bytes is.
    pub(crate) fn of(bytes: &[u8]) -> Option<Instead> {
        const SIGNS: [(&[u8], Instead); 9] = [
            (b"\xff\xfe", Instead::Utf16),
            (b"\xfe\xff", Instead::Utf16),
            (b"%PDF", Instead::Pdf),
            (b"PK\x03\x04", Instead::Zip),
            (b"\x1f\x8b", Instead::Gzip),
            (b"\x28\xb5\x2f\xfd", Instead::Zstd),
            (b"\xfd7zXZ\0", Instead::Xz),
            (b"BZh", Instead::Bzip2),
            (b"PAR1", Instead::Parquet),
        ];
        SIGNS.into_iter().find(|(sign, _)| bytes.starts_with(sign)).map(|(_, instead)| instead)
    }
}

/// What is said of a file that is not UTF-8.
pub(crate) fn not_utf8(instead: Option<Instead>, offset: u64) -> String {
    match instead {
        None => format!("not UTF-8 at byte {offset}"),
        Some(Instead::Utf16) => "text in UTF-16, expected UTF-8".to_owned(),
        Some(Instead::Gzip) => "packed by gzip, expected text in UTF-8".to_owned(),
        Some(Instead::Zstd) => "packed by zstd, expected text in UTF-8".to_owned(),
        Some(Instead::Xz) => "packed by xz, expected text in UTF-8".to_owned(),
        Some(Instead::Bzip2) => "packed by bzip2, expected text in UTF-8".to_owned(),
        Some(Instead::Parquet) => "a parquet file, expected text in UTF-8".to_owned(),
        Some(Instead::Pdf) => "a PDF, expected text in UTF-8".to_owned(),
        Some(Instead::Zip) => {
            "a zip archive, as office documents are, expected text in UTF-8".to_owned()
        }
    }
}
