//! Whether tensors can go between processes by NCCL: all must say so.

use std::path::PathBuf;

use candle_core::Device;

use super::Office;
use super::express::Joined;
use crate::threads::lock;
use crate::{Error, Failure, World};

const ON_A_CPU: &str = "it computes on a CPU, and NCCL joins GPUs";

impl World {
    /// From now on tensors go between processes by MPI.
    pub fn sends_by_mpi(&self) {
        if let Some(office) = &self.office {
            office.sends_by(None);
        }
    }

    /// From now on tensors on `device` go between processes by NCCL, in runs of as many `ranks`; or by MPI, and why: of all processes,
    /// which must call it, the first that cannot says so.
    ///
    /// # Errors
    /// A process that is late, gone or stopped.
    pub fn sends_by_nccl(
        &self,
        device: &Device,
        ranks: usize,
    ) -> Result<Option<String>, Failure<Error>> {
        let Some(office) = &self.office else { return Ok(None) };
        let joined = office.nccl(device, ranks);
        let own = match &joined {
            Ok(joined) => format!("+{}", joined.found.library.version()),
            Err(why) => format!("-{why}"),
        };
        let refused = refusal(&self.gather(own.as_bytes())?);
        office.sends_by(joined.ok().filter(|_| refused.is_none()));
        Ok(refused)
    }

    /// Blocks until all that ranks here have posted in the run that is under way has gone and come by NCCL: on a GPU, what they
    /// received so far is there then.
    ///
    /// # Errors
    /// A transfer that failed, and a run that has ended.
    pub fn settle(&self) -> crate::Result<()> {
        self.office.as_ref().map_or(Ok(()), |office| office.settle())
    }

    /// What tensors go by between processes, if not by MPI: the version of NCCL and its file.
    pub fn nccl(&self) -> Option<(String, PathBuf)> {
        let joined = self.office.as_ref()?.joined()?;
        Some((joined.found.library.version(), joined.found.path))
    }

    /// The library of NCCL that would carry them between GPUs, its version and file.
    ///
    /// # Errors
    /// When none is found.
    pub fn nccl_here() -> annulus_nccl::Result<String> {
        let found = annulus_nccl::find()?;
        Ok(format!("{} ({})", found.library.version(), found.path.display()))
    }
}

impl Office {
    /// NCCL as it is used here, found once: a library in use must not be unloaded.
    fn nccl(&self, device: &Device, ranks: usize) -> Result<Joined, String> {
        let mut found = lock(&self.found);
        of_one_rank_each([ranks, self.facts.processes])?;
        let known = found.iter().find(|(of, _)| of.same_device(device));
        if let Some((_, joined)) = known {
            return Ok(joined.clone());
        }
        let joined = nccl(device)?;
        found.push((device.clone(), joined.clone()));
        Ok(joined)
    }
}

/// NCCL joins processes of one rank each.
fn of_one_rank_each([ranks, processes]: [usize; 2]) -> Result<(), String> {
    if ranks == processes {
        return Ok(());
    }
    Err(format!("{ranks} ranks on {processes} processes: NCCL joins those of one rank each"))
}

/// NCCL and a stream of its own on `device`; or why not.
fn nccl(device: &Device) -> Result<Joined, String> {
    // Of the library, only our own of tests knows another device: it must be named.
    let is_tried = cfg!(feature = "emulator") && std::env::var_os(annulus_nccl::NAMED).is_some();
    if !device.is_cuda() && !is_tried {
        return Err(ON_A_CPU.to_owned());
    }
    let found = annulus_nccl::find().map_err(|error| error.to_string())?;
    let lane = annulus_nccl::lane(&found.library, device).map_err(|error| error.to_string())?;
    let lane = lane.ok_or(ON_A_CPU)?;
    Ok(Joined { found, lane })
}

/// Why not, by what all processes say: a version, or a reason.
fn refusal(all: &[Vec<u8>]) -> Option<String> {
    let all: Vec<_> = all.iter().map(|one| String::from_utf8_lossy(one)).collect();
    for (process, said) in all.iter().enumerate() {
        if let Some(why) = said.strip_prefix('-') {
            return Some(format!("process {process}: {why}"));
        }
    }
    let other = all.iter().position(|said| *said != all[0])?;
    let [first, second] = [&all[0], &all[other]].map(|said| said.trim_start_matches('+'));
    Some(format!("process 0 has NCCL {first}, process {other} has {second}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_must_have_the_same_version() {
        let refused = |all: &[&str]| {
            refusal(&all.iter().map(|one| one.as_bytes().to_vec()).collect::<Vec<_>>())
        };
        assert_eq!(refused(&["+2.28.9", "+2.28.9"]), None);
        assert_eq!(refused(&["+2.28.9", "-none"]).as_deref(), Some("process 1: none"));
        let other = refused(&["+2.28.9", "+2.27.3"]).unwrap();
        assert_eq!(other, "process 0 has NCCL 2.28.9, process 1 has 2.27.3");
    }

    #[test]
    fn what_nccl_does_not_join_goes_by_mpi() {
        assert!(of_one_rank_each([4, 2]).unwrap_err().contains("4 ranks on 2 processes"));
        assert_eq!(of_one_rank_each([2, 2]), Ok(()));
        assert!(nccl(&Device::Cpu).err().unwrap().contains("computes on a CPU"));
    }
}
