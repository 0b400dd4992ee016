//! `name:` and `device:`, words of a form.

use annulus_yaml::{Only, Scalar, Typed};

/// `device:`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Device {
    /// A GPU if there is one that this program can use, else the CPU.
    Auto,
    /// The CPU.
    Cpu,
    /// The GPU of this number, from 0; without one the first, or of several processes on a host another for each.
    Cuda(Option<usize>),
}

/// The form of a device.
pub(crate) const DEVICE: Only = Only {
    wanted: "`auto`, `cpu`, `cuda` or `cuda:N`",
    pattern: "^(auto|cpu|cuda(:[0-9]{1,3})?)$",
    takes: |text| Device::from_word(text).is_some(),
    hint: |text| {
        let meant = text.to_lowercase().contains("gpu") || text == "0";
        meant.then(|| String::from("NVIDIA GPUs are `cuda:0`, `cuda:1`, ..."))
    },
};

/// The form of a run's name.
pub const NAME: Only = Only {
    wanted: "a word that can name a folder",
    pattern: "^[^./\\\\ ][^/\\\\]*$",
    takes: names_a_folder,
    hint: |_| Some(String::from("use letters, digits, `-`, `_` and `.`; the folder is `output`")),
};

impl Device {
    /// The word one writes.
    pub fn word(self) -> String {
        match self {
            Device::Auto => "auto".to_owned(),
            Device::Cpu => "cpu".to_owned(),
            Device::Cuda(None) => "cuda".to_owned(),
            Device::Cuda(Some(index)) => format!("cuda:{index}"),
        }
    }

    /// What a word means.
    pub fn from_word(word: &str) -> Option<Device> {
        match word {
            "auto" => Some(Device::Auto),
            "cpu" => Some(Device::Cpu),
            "cuda" => Some(Device::Cuda(None)),
            _ => {
                let index = word.strip_prefix("cuda:")?;
                let plain = index.len() <= 3 && index.bytes().all(|digit| digit.is_ascii_digit());
                let index = index.parse().ok().filter(|_| plain)?;
                Some(Device::Cuda(Some(index)))
            }
        }
    }
}

impl Scalar for Device {
    fn from_typed(typed: &Typed) -> Option<Device> {
        match typed {
            Typed::Text(text) => Device::from_word(text),
            _ => None,
        }
    }

    fn text(&self) -> String {
        self.word()
    }
}

/// A name is one folder below `runs`, on every system.
fn names_a_folder(text: &str) -> bool {
    const LONGEST: usize = 200;
    let plain = |letter: char| letter.is_alphanumeric() || "-_.+= ".contains(letter);
    let edges = text.trim() == text && !text.starts_with('.');
    edges && !text.is_empty() && text.len() <= LONGEST && text.chars().all(plain)
}
