//! The memory that this process may use: the machine's, or less where it is limited.
//!
//! Limits are those of control groups (version 2: `memory.max` and `memory.high`; version 1: `memory.limit_in_bytes`), of the process's
//! group and of every group around it, and those of the process (`ulimit -v`, `ulimit -d`). The lowest holds. All are read from files that
//! Linux keeps. Of a machine with macOS its memory is known, elsewhere nothing.

use std::fmt;
use std::fs;
use std::path::{Component, Path, PathBuf};

use crate::macos;

/// A limit of memory, and what imposes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Limit {
    /// The number of bytes.
    pub bytes: u64,
    /// What imposes the limit.
    pub by: By,
}

/// What limits memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum By {
    /// The machine's physical memory.
    Machine,
    /// A control group: of a container, a service or a job.
    Group,
    /// The limit of the address space, `ulimit -v`.
    AddressSpace,
    /// The limit of data, `ulimit -d`.
    Data,
    /// A GPU's memory.
    Gpu,
    /// The key `memory.budget`.
    Budget,
}

impl fmt::Display for By {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            By::Machine => "this machine has",
            By::Group => "this process's control group allows",
            By::AddressSpace => "`ulimit -v` allows",
            By::Data => "`ulimit -d` allows",
            By::Gpu => "the GPU has",
            By::Budget => "`memory.budget` is",
        })
    }
}

/// The memory that this process may use; `None` where it is not known.
pub fn memory() -> Option<Limit> {
    let all = || Some(Limit { bytes: machine_memory()?, by: By::Machine });
    within(Path::new("/")).or_else(all)
}

/// The memory that this process may use on a system whose files are under `root`.
fn within(root: &Path) -> Option<Limit> {
    let read = |path: &str| fs::read_to_string(root.join(path)).unwrap_or_default();
    let machine = total(&read("proc/meminfo"))?;
    let groups = groups(&read("proc/self/cgroup"), &read("proc/self/mountinfo"));
    let of_groups = groups.iter().flat_map(|group| group.limits(root));
    let all = of_groups.chain(of_process(&read("proc/self/limits"))).chain([machine]);
    all.min()
}

/// The machine's memory, whatever of it this process may use; `None` where it is not known.
pub fn machine_memory() -> Option<u64> {
    let listed = total(&fs::read_to_string("/proc/meminfo").unwrap_or_default());
    listed.map(|limit| limit.bytes).or_else(|| macos::count("hw.memsize")?.try_into().ok())
}

/// The machine's memory: `MemTotal` of /proc/meminfo.
fn total(meminfo: &str) -> Option<Limit> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kibibytes: u64 = line.split_whitespace().next()?.parse().ok()?;
    Some(Limit { bytes: kibibytes.checked_mul(1024)?, by: By::Machine })
}

/// The soft limits in /proc/self/limits, without unlimited ones.
fn of_process(limits: &str) -> Vec<Limit> {
    let of = |(name, by): (&str, By)| {
        let line = limits.lines().find_map(|line| line.strip_prefix(name))?;
        let bytes = line.split_whitespace().next()?.parse().ok()?;
        Some(Limit { bytes, by })
    };
    let known = [("Max address space", By::AddressSpace), ("Max data size", By::Data)];
    known.into_iter().filter_map(of).collect()
}

/// A control group that this process belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Group {
    /// The mount point of its hierarchy.
    mount: PathBuf,
    /// Its folder below the mount point, empty at the top.
    below: PathBuf,
    /// The files with its limits.
    files: &'static [&'static str],
}

impl Group {
    /// The limits of the group and of all groups around it, as far as they are mounted.
    fn limits(&self, root: &Path) -> Vec<Limit> {
        let inside = self.mount.strip_prefix("/").unwrap_or(&self.mount);
        let folders = self.below.ancestors().map(|below| root.join(inside).join(below));
        let of_folder = |folder: PathBuf| self.files.iter().map(move |file| folder.join(file));
        let bytes = |file: PathBuf| fs::read_to_string(file).ok()?.trim().parse().ok();
        let limit = |bytes| Limit { bytes, by: By::Group };
        folders.flat_map(of_folder).filter_map(bytes).map(limit).collect()
    }
}

/// The control groups that count memory, from /proc/self/cgroup and /proc/self/mountinfo.
fn groups(own: &str, mounts: &str) -> Vec<Group> {
    own.lines().filter_map(|line| group(line, mounts)).collect()
}

/// The group of a line `HIERARCHY:CONTROLLERS:PATH`; version 2 is hierarchy 0, without controllers.
fn group(line: &str, mounts: &str) -> Option<Group> {
    let mut parts = line.splitn(3, ':');
    let (hierarchy, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
    let counts = |list: &str| list.split(',').any(|one| one == "memory");
    let second = hierarchy == "0" && controllers.is_empty();
    if !second && !counts(controllers) {
        return None;
    }
    let (kind, files): (_, &[&str]) = if second {
        ("cgroup2", &["memory.max", "memory.high"])
    } else {
        ("cgroup", &["memory.limit_in_bytes"])
    };
    mounts.lines().find_map(|mount| {
        let (fields, source) = mount.split_once(" - ")?;
        let mut source = source.split(' ');
        let (found, options) = (source.next()?, source.nth(1)?);
        if found != kind || !(second || counts(options)) {
            return None;
        }
        let mut fields = fields.split(' ').skip(3);
        let (top, mount) = (unescaped(fields.next()?), unescaped(fields.next()?));
        // The mounted folder may be a group itself, and the path may lead out of it.
        let below = Path::new(path).strip_prefix(top).unwrap_or(Path::new(""));
        let leads_out = below.components().any(|part| part == Component::ParentDir);
        let below = if leads_out { PathBuf::new() } else { below.to_owned() };
        Some(Group { mount, below, files })
    })
}

/// A path of mountinfo, in which blanks are written `\040`.
fn unescaped(path: &str) -> PathBuf {
    path.replace("\\040", " ").replace("\\011", "\t").replace("\\012", "\n").into()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEMINFO: &str = "MemTotal:       16384000 kB\nMemFree:  1 kB\n";
    const UNLIMITED: &str = "Limit                     Soft Limit           Hard Limit           Units\n\
        Max data size             unlimited            unlimited            bytes\n\
        Max address space         unlimited            unlimited            bytes\n";
    const FIRST: &str = "36 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n";
    const SECOND: &str = "41 31 0:38 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";

    /// The limit on a system with these files, by path and text.
    fn allowed(files: &[(&str, &str)]) -> Option<Limit> {
        let root = tempfile::tempdir().unwrap();
        let usual = [("proc/meminfo", MEMINFO), ("proc/self/limits", UNLIMITED)];
        for (path, text) in usual.iter().chain(files) {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        within(root.path())
    }

    fn by(by: By, bytes: u64) -> Limit {
        Limit { bytes, by }
    }

    #[test]
    fn without_limits_it_is_the_machines() {
        assert_eq!(allowed(&[]), Some(by(By::Machine, 16_384_000 << 10)));
        assert_eq!(allowed(&[("proc/meminfo", "nothing")]), None);
        assert!(memory().is_none_or(|limit| limit.bytes > 1 << 20));
    }

    #[test]
    fn the_least_of_nested_groups_of_version_2_holds() {
        let group = [("proc/self/cgroup", "0::/a.slice/b c\n"), ("proc/self/mountinfo", SECOND)];
        let of = |files: &[(&str, &str)]| allowed(&[&group, files].concat());
        let own = "sys/fs/cgroup/a.slice/b c/memory.max";
        let around = "sys/fs/cgroup/a.slice/memory.max";
        assert_eq!(
            of(&[(own, "max\n"), (around, "max\n")]),
            Some(by(By::Machine, 16_384_000 << 10))
        );
        assert_eq!(of(&[(own, "3000000\n"), (around, "max\n")]), Some(by(By::Group, 3_000_000)));
        assert_eq!(
            of(&[(own, "3000000\n"), (around, "2000000\n")]),
            Some(by(By::Group, 2_000_000))
        );
        let high = "sys/fs/cgroup/a.slice/b c/memory.high";
        assert_eq!(of(&[(own, "3000000\n"), (high, "1000000\n")]), Some(by(By::Group, 1_000_000)));
        assert_eq!(
            of(&[("sys/fs/cgroup/memory.max", "7000000\n")]),
            Some(by(By::Group, 7_000_000))
        );
    }

    #[test]
    fn the_least_of_nested_groups_of_version_1_holds() {
        let own = "4:cpu,memory:/jobs/mine\n3:cpuset:/\n0::/\n";
        let mounts = format!("32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n{FIRST}");
        let groups = [("proc/self/cgroup", own), ("proc/self/mountinfo", mounts.as_str())];
        let of = |files: &[(&str, &str)]| allowed(&[&groups, files].concat());
        let (job, jobs) = (
            "sys/fs/cgroup/memory/jobs/mine/memory.limit_in_bytes",
            "sys/fs/cgroup/memory/jobs/memory.limit_in_bytes",
        );
        let unlimited = "9223372036854771712\n";
        assert_eq!(of(&[(job, unlimited)]), Some(by(By::Machine, 16_384_000 << 10)));
        assert_eq!(of(&[(job, "262144000\n")]), Some(by(By::Group, 262_144_000)));
        assert_eq!(of(&[(job, unlimited), (jobs, "1000\n")]), Some(by(By::Group, 1000)));
    }

    /// As Docker mounts it: the container's group is the top, under the path that it has outside.
    #[test]
    fn a_mounted_group_is_its_own_top() {
        let mounts = "36 31 0:32 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n";
        let limit = ("sys/fs/cgroup/memory/memory.limit_in_bytes", "5000\n");
        for own in ["4:memory:/docker/abc\n", "4:memory:/elsewhere\n", "4:memory:/../x\n"] {
            let files = [("proc/self/cgroup", own), ("proc/self/mountinfo", mounts), limit];
            assert_eq!(allowed(&files), Some(by(By::Group, 5000)), "{own}");
        }
        let files = [("proc/self/cgroup", "0::/../x\n"), ("proc/self/mountinfo", SECOND)];
        let top = ("sys/fs/cgroup/memory.max", "5000\n");
        assert_eq!(allowed(&[&files[..], &[top]].concat()), Some(by(By::Group, 5000)));
    }

    #[test]
    fn limits_of_the_process_are_seen() {
        let limits = |data: &str, addresses: &str| {
            format!(
                "Max data size             {data}            unlimited            bytes\n\
                 Max address space         {addresses}            unlimited            bytes\n"
            )
        };
        let of = |data, addresses| allowed(&[("proc/self/limits", &limits(data, addresses))]);
        assert_eq!(of("unlimited", "1048576000"), Some(by(By::AddressSpace, 1_048_576_000)));
        assert_eq!(of("4096", "1048576000"), Some(by(By::Data, 4096)));
        assert_eq!(of("unlimited", "unlimited"), Some(by(By::Machine, 16_384_000 << 10)));
    }
}
