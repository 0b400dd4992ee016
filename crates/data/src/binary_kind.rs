//! Files that are given as text but are of another kind, recognised by their first bytes.

/// The kind of a file that is given as text but is not UTF-8.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BinaryKind {
    /// Text in UTF-16.
    Utf16,
    /// A PDF.
    Pdf,
    /// A zip archive, as office documents are.
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

impl BinaryKind {
    /// The kind of a file with these first bytes; `None`: not known.
    pub(crate) fn of(bytes: &[u8]) -> Option<BinaryKind> {
        const SIGNS: [(&[u8], BinaryKind); 9] = [
            (b"\xff\xfe", BinaryKind::Utf16),
            (b"\xfe\xff", BinaryKind::Utf16),
            (b"%PDF", BinaryKind::Pdf),
            (b"PK\x03\x04", BinaryKind::Zip),
            (b"\x1f\x8b", BinaryKind::Gzip),
            (b"\x28\xb5\x2f\xfd", BinaryKind::Zstd),
            (b"\xfd7zXZ\0", BinaryKind::Xz),
            (b"BZh", BinaryKind::Bzip2),
            (b"PAR1", BinaryKind::Parquet),
        ];
        SIGNS.into_iter().find(|(sign, _)| bytes.starts_with(sign)).map(|(_, kind)| kind)
    }
}

/// The message about a file that is not UTF-8.
pub(crate) fn not_utf8(kind: Option<BinaryKind>, offset: u64) -> String {
    match kind {
        None => format!("not UTF-8 at byte {offset}"),
        Some(BinaryKind::Utf16) => "text in UTF-16, expected UTF-8".to_owned(),
        Some(BinaryKind::Gzip) => "packed by gzip, expected text in UTF-8".to_owned(),
        Some(BinaryKind::Zstd) => "packed by zstd, expected text in UTF-8".to_owned(),
        Some(BinaryKind::Xz) => "packed by xz, expected text in UTF-8".to_owned(),
        Some(BinaryKind::Bzip2) => "packed by bzip2, expected text in UTF-8".to_owned(),
        Some(BinaryKind::Parquet) => "a parquet file, expected text in UTF-8".to_owned(),
        Some(BinaryKind::Pdf) => "a PDF, expected text in UTF-8".to_owned(),
        Some(BinaryKind::Zip) => {
            "a zip archive, as office documents are, expected text in UTF-8".to_owned()
        }
    }
}
