//! Where tensors lie in the files of a folder: known before any is written, so that several processes can fill the files together.

use std::collections::{BTreeMap, HashMap};
use std::fs::{File, OpenOptions};
use std::io::{self, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use annulus_files::hugging_face::{WEIGHTS, WEIGHTS_INDEX};
use annulus_ops::on_host;
use candle_core::{DType, Tensor};
use safetensors::View;
use safetensors::tensor::{Metadata, TensorInfo};
use serde_json::{Value, json};

use super::WeightsError;

/// A tensor's entry in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Described {
    /// The tensor's name.
    pub name: String,
    /// The tensor's shape.
    pub shape: Vec<usize>,
    /// The dtype of the elements.
    pub dtype: DType,
}

impl Described {
    /// The description of a tensor under a name.
    pub fn of(name: impl Into<String>, tensor: &Tensor) -> Described {
        Described { name: name.into(), shape: tensor.dims().to_vec(), dtype: tensor.dtype() }
    }

    fn bytes(&self) -> u64 {
        (self.shape.iter().product::<usize>() * self.dtype.size_in_bytes()) as u64
    }
}

/// The files of a folder and where each tensor lies in them; equal tensors make equal bytes.
#[derive(Clone, Debug, Default)]
pub struct Layout {
    files: Vec<PlannedFile>,
    /// Where bytes are written, by the name under which a tensor is handed over.
    places: BTreeMap<String, Vec<TensorSpan>>,
    /// The index of tensors by file, where there are several files.
    index: Option<Value>,
}

/// A file before tensors are written to it.
#[derive(Clone, Debug)]
struct PlannedFile {
    name: String,
    header: Vec<u8>,
    bytes: u64,
}

/// Where the bytes of a tensor are: a file, an offset in it, and their number.
#[derive(Clone, Copy, Debug)]
struct TensorSpan {
    file: usize,
    begins: u64,
    bytes: u64,
}

/// The files of a layout, opened for writing: by several processes, if need be, of which each writes some of the elements.
#[derive(Debug)]
pub struct LayoutWriter<'a> {
    layout: &'a Layout,
    folder: PathBuf,
    files: Vec<File>,
    written: u64,
}

impl Layout {
    /// `model.safetensors`, or shards and an index if the weights take more than `shard_bytes`, with the metadata
    /// `{"format": "pt"}` that transformers asks for. A shard is full when the next tensor, in the order in which they are described,
    /// would exceed that; a larger tensor has one of its own.
    ///
    /// # Errors
    /// Tensors that no header can describe.
    pub fn of_weights(weights: &[Described], shard_bytes: u64) -> Result<Layout, WeightsError> {
        let shards = shards_of(weights, shard_bytes);
        let name = |number: usize| match shards.len() {
            1 => WEIGHTS.to_owned(),
            all => format!("model-{:05}-of-{all:05}.safetensors", number + 1),
        };
        let mut layout = Layout::default();
        let mut map = BTreeMap::new();
        for (number, shard) in shards.iter().enumerate() {
            map.extend(shard.iter().map(|one| (one.name.clone(), name(number))));
            layout.add(name(number), shard.iter().map(|one| (one.name.as_str(), one.clone())))?;
        }
        if shards.len() > 1 {
            let total: u64 = weights.iter().map(Described::bytes).sum();
            let index = json!({ "metadata": { "total_size": total }, "weight_map": map });
            layout.index = Some(index);
        }
        Ok(layout)
    }

    /// A layout of one file with these tensors, each with the name under which it is handed over.
    ///
    /// # Errors
    /// Tensors that no header can describe.
    pub fn of_file<'a>(
        name: &str,
        tensors: impl IntoIterator<Item = (&'a str, Described)>,
    ) -> Result<Layout, WeightsError> {
        let mut layout = Layout::default();
        layout.add(name.to_owned(), tensors)?;
        Ok(layout)
    }

    /// Adds a file to the layout.
    fn add<'a>(
        &mut self,
        name: String,
        tensors: impl IntoIterator<Item = (&'a str, Described)>,
    ) -> Result<(), WeightsError> {
        let (mut entries, mut places, mut end) = (Vec::new(), Vec::new(), 0);
        for (of, tensor) in tensors {
            let (begin, bytes) = (end, tensor.bytes());
            end += bytes;
            let dtype = safetensors::Dtype::from(tensor.dtype);
            let data_offsets = (begin as usize, end as usize);
            entries.push((tensor.name, TensorInfo { dtype, shape: tensor.shape, data_offsets }));
            places.push((of, TensorSpan { file: self.files.len(), begins: begin, bytes }));
        }
        let failed = |source| WeightsError::Write { file: PathBuf::from(&name), source };
        let header = header(entries).map_err(failed)?;
        for (of, place) in places {
            let begins = place.begins + header.len() as u64;
            self.places.entry(of.to_owned()).or_default().push(TensorSpan { begins, ..place });
        }
        self.files.push(PlannedFile { name, bytes: header.len() as u64 + end, header });
        Ok(())
    }

    /// Bytes of all tensors: what all who fill the files write together.
    pub fn bytes(&self) -> u64 {
        self.places.values().flatten().map(|place| place.bytes).sum()
    }

    /// Creates the files at their full length, without tensors. Returns their names, the index last.
    ///
    /// # Errors
    /// A file that cannot be written.
    pub fn create(&self, folder: &Path) -> Result<Vec<String>, WeightsError> {
        let mut names = Vec::new();
        for PlannedFile { name, header, bytes } in &self.files {
            write(&folder.join(name), |file| {
                file.write_all(header)?;
                file.set_len(*bytes)
            })?;
            names.push(name.clone());
        }
        if let Some(index) = &self.index {
            write(&folder.join(WEIGHTS_INDEX), |file| {
                file.write_all(&serde_json::to_vec_pretty(index)?)
            })?;
            names.push(WEIGHTS_INDEX.to_owned());
        }
        Ok(names)
    }

    /// Opens files that were created, to fill them.
    ///
    /// # Errors
    /// A file that cannot be opened.
    pub fn open(&self, folder: &Path) -> Result<LayoutWriter<'_>, WeightsError> {
        let open = |file: &PlannedFile| {
            let path = folder.join(&file.name);
            let opened = OpenOptions::new().write(true).open(&path);
            opened.map_err(|source| WeightsError::Write { file: path, source })
        };
        let files = self.files.iter().map(open).collect::<Result<_, _>>()?;
        Ok(LayoutWriter { layout: self, folder: folder.to_owned(), files, written: 0 })
    }
}

impl LayoutWriter<'_> {
    /// Writes elements of the tensor `name` to their places in it, flat: `runs` of neighbours, each as its first index and its length.
    ///
    /// # Errors
    /// A file that cannot be written, and elements that are not the tensor's.
    pub fn write(
        &mut self,
        name: &str,
        elements: &Tensor,
        runs: &[(usize, usize)],
    ) -> Result<(), WeightsError> {
        let unread = |error| WeightsError::Write {
            file: self.folder.clone(),
            source: io::Error::other(error),
        };
        let elements = on_host(elements).map_err(unread)?;
        let (size, bytes) = (elements.dtype().size_in_bytes(), elements.data());
        let mut rest = &*bytes;
        for &(begins, many) in runs {
            let Some((run, behind)) = rest.split_at_checked(many * size) else {
                return Err(self.refused(name, begins, many));
            };
            self.write_run(name, begins, many, run)?;
            rest = behind;
        }
        if rest.is_empty() { Ok(()) } else { Err(self.refused(name, 0, elements.elem_count())) }
    }

    /// Writes elements that lie next to each other.
    fn write_run(
        &mut self,
        name: &str,
        begins: usize,
        many: usize,
        bytes: &[u8],
    ) -> Result<(), WeightsError> {
        let size = bytes.len().checked_div(many).unwrap_or_default();
        let (at, end) = ((begins * size) as u64, ((begins + many) * size) as u64);
        let places = self.layout.places.get(name).map_or(&[][..], Vec::as_slice);
        if places.first().is_none_or(|place| end > place.bytes) {
            return Err(self.refused(name, begins, many));
        }
        for place in places {
            let mut file = &self.files[place.file];
            let written = file.seek(SeekFrom::Start(place.begins + at));
            let written = written.and_then(|_| file.write_all(bytes));
            written.map_err(|source| self.unwritten(place.file, source))?;
            self.written += bytes.len() as u64;
        }
        Ok(())
    }

    fn refused(&self, name: &str, begins: usize, many: usize) -> WeightsError {
        let message = format!("`{name}` has no {many} elements from {begins} on");
        WeightsError::Write { file: self.folder.clone(), source: io::Error::other(message) }
    }

    /// Syncs all files to disk; returns how many bytes were written.
    ///
    /// # Errors
    /// A file for which the system reports a failure.
    pub fn end(self) -> Result<u64, WeightsError> {
        for (number, file) in self.files.iter().enumerate() {
            file.sync_all().map_err(|source| self.unwritten(number, source))?;
        }
        Ok(self.written)
    }

    fn unwritten(&self, number: usize, source: io::Error) -> WeightsError {
        WeightsError::Write { file: self.folder.join(&self.layout.files[number].name), source }
    }
}

/// Assigns weights to shards in the order of names; a shard is full when the next tensor would exceed `shard_bytes`.
fn shards_of(weights: &[Described], shard_bytes: u64) -> Vec<&[Described]> {
    let (mut shards, mut begins, mut held) = (Vec::new(), 0, 0);
    for (at, one) in weights.iter().enumerate() {
        if held > 0 && held + one.bytes() > shard_bytes {
            shards.push(&weights[begins..at]);
            (begins, held) = (at, 0);
        }
        held += one.bytes();
    }
    shards.push(&weights[begins..]);
    shards
}

/// The header before the tensors. The crate's own writer leaves files that only their owner may read, and does not sync them.
fn header(entries: Vec<(String, TensorInfo)>) -> io::Result<Vec<u8>> {
    let format = HashMap::from([("format".to_owned(), "pt".to_owned())]);
    let metadata = Metadata::new(Some(format), entries).map_err(io::Error::other)?;
    let mut header = serde_json::to_vec(&metadata)?;
    // Data starts at a multiple of 8, for readers that map the file.
    header.resize(header.len().next_multiple_of(8), b' ');
    let length = (header.len() as u64).to_le_bytes();
    Ok([&length, header.as_slice()].concat())
}

/// Creates `path`, fills it, and returns when it is on disk.
fn write(path: &Path, fill: impl FnOnce(&mut File) -> io::Result<()>) -> Result<(), WeightsError> {
    let create = || {
        let mut file = File::create(path)?;
        fill(&mut file)?;
        file.sync_all()
    };
    create().map_err(|source| WeightsError::Write { file: path.to_owned(), source })
}
