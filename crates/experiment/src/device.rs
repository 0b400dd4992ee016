//! The keys `device` and `name`: words that must have a certain form.

use std::ops::RangeInclusive;

use annulus_yaml::{Only, Scalar, Typed};

/// The key `device`: what ranks compute on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Device {
    /// `Cuda` without numbers if there is a GPU that this program can use, else the CPU.
    Auto,
    /// The CPU.
    Cpu,
    /// The GPUs with these numbers, from 0, which the ranks of a process share evenly, in order; no numbers: as many of the existing ones
    /// as there are ranks. Each of several processes on a host takes another GPU.
    Cuda(Vec<usize>),
}

/// The form of the key `device`.
pub(crate) const DEVICE: Only = Only {
    wanted: "`auto`, `cpu`, `cuda`, `cuda:N` or several as `cuda:0-3` or `cuda:0,2`",
    pattern: "^(auto|cpu|cuda(:[0-9]{1,3}(-[0-9]{1,3})?(,[0-9]{1,3}(-[0-9]{1,3})?)*)?)$",
    takes: |text| Device::from_word(text).is_some(),
    hint: |text| {
        if let Some(numbers) = text.strip_prefix("cuda:") {
            return wrong(numbers);
        }
        let meant = text.to_lowercase().contains("gpu") || text == "0";
        meant.then(|| String::from("NVIDIA GPUs are `cuda:0`, `cuda:1`, ..."))
    },
};

/// The form of the key `name`.
pub const NAME: Only = Only {
    wanted: "a word that can name a folder",
    pattern: "^[^./\\\\ ][^/\\\\]*$",
    takes: names_a_folder,
    hint: |_| Some(String::from("use letters, digits, `-`, `_` and `.`; the folder is `output`")),
};

impl Device {
    /// The word of this device, as one writes it.
    pub fn word(&self) -> String {
        match self {
            Device::Auto => "auto".to_owned(),
            Device::Cpu => "cpu".to_owned(),
            Device::Cuda(numbers) if numbers.is_empty() => "cuda".to_owned(),
            Device::Cuda(numbers) => format!("cuda:{}", list(numbers)),
        }
    }

    /// The device that a word means.
    pub fn from_word(word: &str) -> Option<Device> {
        match word {
            "auto" => Some(Device::Auto),
            "cpu" => Some(Device::Cpu),
            "cuda" => Some(Device::Cuda(Vec::new())),
            _ => {
                let ranges = word.strip_prefix("cuda:")?.split(',').map(range);
                let numbers: Vec<usize> =
                    ranges.collect::<Option<Vec<_>>>()?.into_iter().flatten().collect();
                doubled(&numbers).is_none().then_some(Device::Cuda(numbers))
            }
        }
    }
}

impl Device {
    /// The numbers of the first `devices` GPUs that this word means, in the order of ranks; empty for the CPU.
    pub fn numbers(&self, devices: usize) -> Vec<usize> {
        match self {
            Device::Cpu => Vec::new(),
            Device::Cuda(numbers) if !numbers.is_empty() => {
                numbers[..devices.min(numbers.len())].to_vec()
            }
            Device::Auto | Device::Cuda(_) => (0..devices).collect(),
        }
    }
}

/// A range of GPU numbers, `3` or `0-3`; `None` unless it rises.
fn range(text: &str) -> Option<RangeInclusive<usize>> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let [first, last] = [number(first)?, number(last)?];
    (first <= last).then_some(first..=last)
}

fn number(text: &str) -> Option<usize> {
    let plain = text.len() <= 3 && text.bytes().all(|digit| digit.is_ascii_digit());
    text.parse().ok().filter(|_| plain)
}

/// The first number that occurs twice.
fn doubled(numbers: &[usize]) -> Option<usize> {
    let twice = numbers.iter().enumerate().find(|(at, number)| numbers[..*at].contains(number));
    twice.map(|(_, number)| *number)
}

/// GPU numbers as one writes them: three or more in a row as a range.
fn list(numbers: &[usize]) -> String {
    let runs = numbers.chunk_by(|number, next| number + 1 == *next);
    let run = |run: &[usize]| match run {
        [first, _, .., last] => format!("{first}-{last}"),
        few => few.iter().map(ToString::to_string).collect::<Vec<_>>().join(","),
    };
    runs.map(run).collect::<Vec<_>>().join(",")
}

/// The hint for a malformed list of GPU numbers.
fn wrong(numbers: &str) -> Option<String> {
    let mut all = Vec::new();
    for part in numbers.split(',') {
        if let Some((first, last)) = part.split_once('-')
            && let (Some(first), Some(last)) = (number(first), number(last))
            && last < first
        {
            return Some(format!("a range rises: write `{last}-{first}` for `{part}`"));
        }
        all.extend(range(part)?);
    }
    doubled(&all).map(|twice| format!("`{twice}` is in it twice: name every GPU once"))
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

/// Whether `text` can name one folder below `runs`, on every system.
fn names_a_folder(text: &str) -> bool {
    const LONGEST: usize = 200;
    let plain = |letter: char| letter.is_alphanumeric() || "-_.+= ".contains(letter);
    let edges = text.trim() == text && !text.starts_with('.');
    edges && !text.is_empty() && text.len() <= LONGEST && text.chars().all(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_gpus_is_read_as_it_is_written() {
        for (word, numbers) in [
            ("cuda", &[][..]),
            ("cuda:3", &[3]),
            ("cuda:0-3", &[0, 1, 2, 3]),
            ("cuda:2,0", &[2, 0]),
            ("cuda:4,0-2,9", &[4, 0, 1, 2, 9]),
        ] {
            let read = Device::from_word(word);
            assert_eq!(read, Some(Device::Cuda(numbers.to_vec())), "{word}");
            assert_eq!(read.map(|device| device.word()).as_deref(), Some(word));
        }
        let short = Device::from_word("cuda:1-1,2-3").map(|device| device.word());
        assert_eq!(short.as_deref(), Some("cuda:1-3"));
    }

    #[test]
    fn what_is_no_list_says_why() {
        let hint = |word: &str| {
            assert!(Device::from_word(word).is_none() && !(DEVICE.takes)(word), "{word}");
            (DEVICE.hint)(word)
        };
        assert_eq!(hint("cuda:3-0").as_deref(), Some("a range rises: write `0-3` for `3-0`"));
        let twice = "`1` is in it twice: name every GPU once";
        assert_eq!(
            [hint("cuda:1,1"), hint("cuda:0-2,1")],
            [(); 2].map(|()| Some(twice.to_owned()))
        );
        for word in ["cuda:", "cuda:0-", "cuda:1,", "cuda:-1", "cuda:1234", "cuda:+1", "cuda:0-1-2"]
        {
            assert_eq!(hint(word), None, "{word}");
        }
    }
}
