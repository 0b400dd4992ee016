//! A safetensors file with a checked header, whose tensors are read on request.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::header::{Header, LENGTH};
use crate::{Entry, Problem, Room, TensorsError};

/// How the text begins that Git LFS leaves in place of a file.
const POINTER: [u8; LENGTH] = *b"version ";

/// No header is as long: where one seems to be, the bytes of its length are something else, such as text.
const ABSURD: u64 = 1 << 40;

/// Bytes that are compared at a time.
const BLOCK: usize = 1 << 16;

/// An open safetensors file.
#[derive(Debug)]
pub struct TensorFile {
    file: File,
    path: PathBuf,
    header: Header,
    /// Where the first tensor begins, in bytes from the start of the file.
    data: u64,
}

impl TensorFile {
    /// Opens the file `at` and checks its header, which comes out of `room`; errors call it `path`.
    ///
    /// # Errors
    /// When it is no regular file, or its header does not hold.
    pub fn open(path: &Path, at: &Path, room: &mut Room) -> Result<TensorFile, TensorsError> {
        let unread = |error| TensorsError::read(path, error);
        let malformed = |problem: String| TensorsError::malformed(path, &problem);
        let file = annulus_files::open(at).map_err(unread)?;
        let size = file.metadata().map_err(unread)?.len();
        let mut length = [0; LENGTH];
        if size < LENGTH as u64 {
            return Err(malformed(format!("it has {size} bytes (expected at least {LENGTH})")));
        }
        file.read_exact_at(&mut length, 0).map_err(unread)?;
        if length == POINTER {
            return Err(TensorsError { file: path.to_owned(), problem: Problem::Pointer });
        }
        let length = u64::from_le_bytes(length);
        if length > size.max(ABSURD) {
            return Err(TensorsError { file: path.to_owned(), problem: Problem::Foreign });
        }
        room.take(path, "its header", length)?;
        let data = LENGTH as u64 + length;
        let Some(rest) = size.checked_sub(data) else {
            let problem = format!(
                "its header of {length} bytes exceeds its {size} bytes: the file may be truncated"
            );
            return Err(malformed(problem));
        };
        // At most what `room` allows.
        let mut header = vec![0; length as usize];
        file.read_exact_at(&mut header, LENGTH as u64).map_err(unread)?;
        let header = Header::parse(&header, rest, room).map_err(malformed)?;
        Ok(TensorFile { file, path: path.to_owned(), header, data })
    }

    /// The path that errors show.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The open file.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// The file's tensors by name.
    pub fn tensors(&self) -> &BTreeMap<String, Entry> {
        &self.header.tensors
    }

    /// The kept metadata of the file.
    pub fn metadata(&self) -> &BTreeMap<String, String> {
        &self.header.metadata
    }

    /// All bytes of one of the file's tensors.
    ///
    /// # Errors
    /// When they cannot be read, or the file has become shorter.
    pub fn read(&self, tensor: &Entry) -> Result<Vec<u8>, TensorsError> {
        let mut bytes = vec![0; tensor.length() as usize];
        self.read_at(tensor, 0, &mut bytes)?;
        Ok(bytes)
    }

    /// Fills `bytes` from byte `at` of one of the file's tensors.
    ///
    /// # Errors
    /// Those of [`TensorFile::read`].
    pub fn read_at(&self, tensor: &Entry, at: u64, bytes: &mut [u8]) -> Result<(), TensorsError> {
        let from = self.data + tensor.bytes.start + at;
        self.file.read_exact_at(bytes, from).map_err(|error| TensorsError::read(&self.path, error))
    }

    /// Whether a tensor of this file and one of another are equal, bit by bit.
    ///
    /// # Errors
    /// Those of [`TensorFile::read`].
    pub fn same(
        &self,
        tensor: &Entry,
        other: &TensorFile,
        theirs: &Entry,
    ) -> Result<bool, TensorsError> {
        if (tensor.dtype, &tensor.shape) != (theirs.dtype, &theirs.shape) {
            return Ok(false);
        }
        let (mut ours, mut others) = (vec![0; BLOCK], vec![0; BLOCK]);
        let mut at = 0;
        while at < tensor.length() {
            let length = BLOCK.min((tensor.length() - at) as usize);
            self.read_at(tensor, at, &mut ours[..length])?;
            other.read_at(theirs, at, &mut others[..length])?;
            if ours[..length] != others[..length] {
                return Ok(false);
            }
            at += length as u64;
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file with `a`, 4 bytes, and `b`, 8.
    fn written(folder: &Path) -> PathBuf {
        let header = r#"{"__metadata__":{"of":"us"},"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"F32","shape":[2,1],"data_offsets":[4,12]}}"#;
        let length = (header.len() as u64).to_le_bytes();
        let path = folder.join("x.safetensors");
        std::fs::write(&path, [&length, header.as_bytes(), b"abcdefghijkl"].concat()).unwrap();
        path
    }

    #[test]
    fn tensors_are_read_where_they_lie() {
        let folder = tempfile::tempdir().unwrap();
        let path = written(folder.path());
        let mut room = Room::of(2).and_metadata(&["of"]);
        let file = TensorFile::open(&path, &path, &mut room).unwrap();
        assert_eq!(file.metadata()["of"], "us");
        let [a, b] = ["a", "b"].map(|name| &file.tensors()[name]);
        assert_eq!(
            (file.read(a).unwrap(), file.read(b).unwrap()),
            (b"abcd".to_vec(), b"efghijkl".to_vec())
        );
        assert!(file.same(b, &file, b).unwrap() && !file.same(a, &file, b).unwrap());
        let one = TensorFile::open(&path, &path, &mut Room::of(1)).unwrap_err();
        assert!(one.to_string().contains("more than 1 tensors"), "{one}");
    }

    #[test]
    fn a_pointer_of_git_lfs_is_said_to_be_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.safetensors");
        std::fs::write(&path, "version https://git-lfs.github.com/spec/v1\nsize 1\n").unwrap();
        let error = TensorFile::open(&path, &path, &mut Room::of(2)).unwrap_err();
        assert!(error.to_string().contains("is a Git LFS pointer"), "{error}");
        assert!(error.hint().is_some_and(|hint| hint.contains("git lfs pull")));
    }

    #[test]
    fn a_file_that_is_cut_short_while_it_is_read_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let path = written(folder.path());
        let file = TensorFile::open(&path, &path, &mut Room::of(2)).unwrap();
        let whole = std::fs::metadata(&path).unwrap().len();
        File::options().write(true).open(&path).unwrap().set_len(whole - 1).unwrap();
        file.read(&file.tensors()["a"]).unwrap();
        let error = file.read(&file.tensors()["b"]).unwrap_err();
        assert!(matches!(error.problem, Problem::Shrunk), "{error}");
    }
}
