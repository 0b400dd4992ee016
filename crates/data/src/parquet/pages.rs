//! Pages of a parquet file, each held to bounds before it is decompressed and before its values are made: a file says itself how
//! much there is in it, and a few bytes can say that it is a lot.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use flate2::read::MultiGzDecoder;
use parquet::basic::{Compression, Encoding};
use parquet::bloom_filter::Sbbf;
use parquet::column::page::{Page, PageMetadata, PageReader};
use parquet::errors::{ParquetError, Result};
use parquet::file::metadata::{ColumnChunkMetaData, RowGroupMetaData};
use parquet::file::reader::RowGroupReader;
use parquet::record::reader::RowIter;
use parquet::schema::types::Type;

use super::CODECS;
use super::levels::Repeated;
use super::thrift::Head;

/// What the pages of all columns that are read at a moment may take together, in bytes.
pub(super) const PAGES: u64 = 1 << 28;

/// What a page of which values are made that are not in it may take, in bytes.
const DELTA_PAGE: usize = 1 << 26;

/// The longest header of a page, in bytes: with the statistics that some have.
const LONGEST_HEAD: u64 = 1 << 24;

/// Bytes of a header that are read first.
const FIRST: u64 = 1 << 14;

/// What an entry of a dictionary takes besides its bytes.
const ENTRY: u64 = 32;

/// The kind of page that is passed over.
const INDEX: i64 = 1;

/// A row group of which pages are read within bounds.
pub(super) struct Bounded<'a> {
    inner: Box<dyn RowGroupReader + 'a>,
    file: Arc<File>,
    /// What pages take now.
    held: Arc<AtomicU64>,
}

impl<'a> Bounded<'a> {
    pub(super) fn new(inner: Box<dyn RowGroupReader + 'a>, file: Arc<File>) -> Bounded<'a> {
        Bounded { inner, file, held: Arc::default() }
    }
}

impl RowGroupReader for Bounded<'_> {
    fn metadata(&self) -> &RowGroupMetaData {
        self.inner.metadata()
    }
    fn num_columns(&self) -> usize {
        self.inner.num_columns()
    }
    fn get_column_page_reader(&self, i: usize) -> Result<Box<dyn PageReader>> {
        let column = self.inner.metadata().column(i);
        let (at, left) = column.byte_range();
        unpacked(column)?;
        Ok(Box::new(Pages {
            inner: self.inner.get_column_page_reader(i)?,
            file: self.file.clone(),
            gzip: matches!(column.compression(), Compression::GZIP(_)),
            at,
            left,
            held: self.held.clone(),
            dictionary: 0,
            page: 0,
            repeated: Repeated::new(column.column_descr().max_rep_level()),
        }))
    }
    fn get_column_bloom_filter(&self, i: usize) -> Option<&Sbbf> {
        self.inner.get_column_bloom_filter(i)
    }
    fn get_row_iter(&self, projection: Option<Type>) -> Result<RowIter<'_>> {
        RowIter::from_row_group(projection, self)
    }
}

/// Refuses a column whose packing is not read.
fn unpacked(column: &ColumnChunkMetaData) -> Result<()> {
    let codec = match column.compression() {
        Compression::BROTLI(_) => "Brotli",
        Compression::LZ4 | Compression::LZ4_RAW => "LZ4",
        Compression::LZO => "LZO",
        _ => return Ok(()),
    };
    let name = column.column_path().string();
    Err(wrong(format!("column `{name}` is packed by {codec}, {CODECS}")))
}

/// The pages of a column.
struct Pages {
    inner: Box<dyn PageReader>,
    file: Arc<File>,
    gzip: bool,
    /// Where the next page begins, and how many bytes of the column come from there.
    at: u64,
    left: u64,
    held: Arc<AtomicU64>,
    /// What the column's dictionary takes, and the page that is read.
    dictionary: u64,
    page: u64,
    repeated: Repeated,
}

/// A page that comes next: where its data begins, how long that is, in the file and as it is read, and what of the column comes
/// behind it.
struct Next {
    at: u64,
    compressed: u64,
    size: u64,
    left: u64,
}

impl Pages {
    /// Holds the next page to the bounds, and goes behind it; `false`: there is none.
    fn examine(&mut self) -> Result<bool> {
        let Some(next) = self.coming()? else { return Ok(false) };
        let Next { at, compressed, size, .. } = next;
        // Until it is known what the page is, the one before it is still there.
        let others = self.held.load(Ordering::Relaxed);
        let held = others.saturating_add(size.max(compressed));
        if held > PAGES {
            return Err(wrong(format!(
                "its pages would take {held} bytes at once, of which {PAGES} are read at most"
            )));
        }
        if self.gzip {
            self.inflates_to(at, compressed, size)?;
        }
        (self.at, self.left) = (at + compressed, next.left);
        Ok(true)
    }

    /// The next page that is no index.
    fn coming(&self) -> Result<Option<Next>> {
        let (mut at, mut left) = (self.at, self.left);
        while left > 0 {
            let head = self.head(at, left)?;
            let (Ok(compressed), Ok(size)) =
                (u64::try_from(head.compressed), u64::try_from(head.uncompressed))
            else {
                return Err(wrong("a page has fewer than no bytes".to_owned()));
            };
            let whole = head.length as u64 + compressed;
            if whole > left {
                return Err(wrong("a page is longer than its column".to_owned()));
            }
            (at, left) = (at + whole, left - whole);
            if head.kind != INDEX {
                return Ok(Some(Next { at: at - compressed, compressed, size, left }));
            }
        }
        Ok(None)
    }

    fn head(&self, at: u64, left: u64) -> Result<Head> {
        let mut length = FIRST;
        loop {
            let mut bytes = vec![0; length.min(left) as usize];
            self.file.read_exact_at(&mut bytes, at)?;
            if let Some(head) = Head::read(&bytes) {
                return Ok(head);
            }
            if length >= left.min(LONGEST_HEAD) {
                return Err(wrong("the header of a page is not what such files have".to_owned()));
            }
            length *= 8;
        }
    }

    /// Gzip alone is decompressed by the library whatever the page says that it has.
    fn inflates_to(&self, at: u64, compressed: u64, size: u64) -> Result<()> {
        let file = Part { file: &self.file, at, left: compressed };
        let found = std::io::copy(
            &mut std::io::Read::take(MultiGzDecoder::new(file), size + 1),
            &mut std::io::sink(),
        );
        match found {
            Ok(found) if found <= size => Ok(()),
            // Levels of some pages are not compressed: then the library sees other bytes, and says what it finds.
            Err(_) => Ok(()),
            Ok(_) => {
                Err(wrong(format!("a page has more than the {size} bytes that it says it has")))
            }
        }
    }

    /// What a page takes once it is decoded, and whether its values are in bounds.
    fn admit(&mut self, page: &Page) -> Result<()> {
        let (bytes, values) = (page.buffer().len(), u64::from(page.num_values()));
        let taken = if page.is_dictionary_page() {
            self.dictionary = bytes as u64 + ENTRY * values;
            self.dictionary
        } else {
            self.repeated.page(page)?;
            let delta = matches!(
                page.encoding(),
                Encoding::DELTA_BYTE_ARRAY | Encoding::DELTA_LENGTH_BYTE_ARRAY
            );
            if delta && (bytes > DELTA_PAGE || values * 8 > DELTA_PAGE as u64) {
                return Err(wrong(format!(
                    "a page of {values} values has {bytes} bytes, of which {DELTA_PAGE} are read at \
                     most in its encoding"
                )));
            }
            self.held.fetch_sub(self.page, Ordering::Relaxed);
            self.page = bytes as u64;
            self.page
        };
        let held = self.held.fetch_add(taken, Ordering::Relaxed) + taken;
        if held > PAGES {
            return Err(wrong(format!(
                "a dictionary has {values} entries, which take {taken} bytes"
            )));
        }
        Ok(())
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        self.held.fetch_sub(self.dictionary + self.page, Ordering::Relaxed);
    }
}

impl PageReader for Pages {
    fn get_next_page(&mut self) -> Result<Option<Page>> {
        if !self.examine()? {
            return Ok(None);
        }
        let page = self.inner.get_next_page()?;
        if let Some(page) = &page {
            self.admit(page)?;
        }
        Ok(page)
    }
    fn peek_next_page(&mut self) -> Result<Option<PageMetadata>> {
        self.coming()?;
        self.inner.peek_next_page()
    }
    fn skip_next_page(&mut self) -> Result<()> {
        Err(wrong("pages are read one after the other".to_owned()))
    }
    fn at_record_boundary(&mut self) -> Result<bool> {
        self.coming()?;
        self.inner.at_record_boundary()
    }
}

impl Iterator for Pages {
    type Item = Result<Page>;
    fn next(&mut self) -> Option<Result<Page>> {
        self.get_next_page().transpose()
    }
}

/// Some bytes of a file, one after the other.
struct Part<'a> {
    file: &'a File,
    at: u64,
    left: u64,
}

impl std::io::Read for Part<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> std::io::Result<usize> {
        let length = bytes.len().min(self.left as usize);
        let read = self.file.read_at(&mut bytes[..length], self.at)?;
        (self.at, self.left) = (self.at + read as u64, self.left - read as u64);
        Ok(read)
    }
}

pub(super) fn wrong(message: String) -> ParquetError {
    ParquetError::General(message)
}
