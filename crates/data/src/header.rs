//! The first bytes of a cache: what it is, how much there is, and the hashes that say it is whole.

use std::fs::File;
use std::os::unix::fs::FileExt;

/// Bytes of a header, and where the ids begin: a multiple of 8.
pub(crate) const HEADER: usize = 256;

const MAGIC: [u8; 8] = *b"annulus\x01";

/// Where the header's own hash begins; what follows it is zero.
const OWN_HASH: usize = 112;

/// What a header says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    /// Bytes of an id: 2 or 4.
    pub(crate) width: u32,
    /// How many ids there are.
    pub(crate) tokens: u64,
    /// How many documents there are.
    pub(crate) documents: u64,
    /// One past the largest id.
    pub(crate) vocabulary: u64,
    /// How many stretches of tokens are learned; 0: all are.
    pub(crate) learned: u64,
    /// The hash of everything after the header.
    pub(crate) content: blake3::Hash,
    /// The hash of everything the content depends on.
    pub(crate) key: blake3::Hash,
}

impl Header {
    /// The version of the file's format and of how texts are made into ids.
    pub(crate) const VERSION: u32 = 1;

    /// Where in the file the documents begin.
    pub(crate) fn documents_at(&self) -> u64 {
        HEADER as u64 + (self.tokens * u64::from(self.width)).next_multiple_of(8)
    }

    /// The header's bytes.
    pub(crate) fn write(&self) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        let mut rest = &mut bytes[..];
        let mut put = |field: &[u8]| {
            let (head, tail) = std::mem::take(&mut rest).split_at_mut(field.len());
            head.copy_from_slice(field);
            rest = tail;
        };
        put(&MAGIC);
        put(&Header::VERSION.to_le_bytes());
        put(&self.width.to_le_bytes());
        put(&self.tokens.to_le_bytes());
        put(&self.documents.to_le_bytes());
        put(&self.vocabulary.to_le_bytes());
        put(&self.learned.to_le_bytes());
        put(self.content.as_bytes());
        put(self.key.as_bytes());
        let hash = blake3::hash(&bytes[..OWN_HASH]);
        bytes[OWN_HASH..][..32].copy_from_slice(hash.as_bytes());
        bytes
    }

    /// The header of `file`, which has `size` bytes; `None` unless it is a cache of that size whose numbers can be.
    pub(crate) fn read(file: &File, size: u64) -> std::io::Result<Option<Header>> {
        if size < HEADER as u64 {
            return Ok(None);
        }
        let mut bytes = [0; HEADER];
        file.read_exact_at(&mut bytes, 0)?;
        Ok(Header::parse(&bytes).filter(|header| header.write() == bytes && header.fits(size)))
    }

    fn parse(bytes: &[u8; HEADER]) -> Option<Header> {
        let number = |at: usize| Some(u64::from_le_bytes(bytes[at..at + 8].try_into().ok()?));
        let hash = |at: usize| Some(blake3::Hash::from_bytes(bytes[at..at + 32].try_into().ok()?));
        Some(Header {
            width: u32::from_le_bytes(bytes[12..16].try_into().ok()?),
            tokens: number(16)?,
            documents: number(24)?,
            vocabulary: number(32)?,
            learned: number(40)?,
            content: hash(48)?,
            key: hash(80)?,
        })
    }

    /// Whether a cache of `size` bytes can have as much of everything: of a header that anybody may have written.
    fn fits(&self, size: u64) -> bool {
        let ids = match self.width {
            2 => 1 << 16,
            4 => 1 << 32,
            _ => return false,
        };
        let possible = self.vocabulary <= ids
            && (self.vocabulary == 0) == (self.tokens == 0)
            && (self.documents == 0) == (self.tokens == 0)
            && self.documents <= self.tokens
            && self.learned <= self.tokens;
        // Wide enough for whatever the counts say.
        let ids = u128::from(self.tokens) * u128::from(self.width);
        let whole = HEADER as u128
            + ids.next_multiple_of(8)
            + 8 * u128::from(self.documents)
            + 16 * u128::from(self.learned);
        possible && whole == u128::from(size)
    }
}
