//! Whether tensors go between processes by NCCL: all processes must be able to use it.

use std::path::PathBuf;

use candle_core::Device;

use super::MpiProcess;
use super::nccl_transfers::NcclSetup;
use crate::{Error, Failure, World};

const ON_A_CPU: &str = "it computes on a CPU, and NCCL joins GPUs";

impl World {
    /// From now on tensors go between processes by MPI.
    pub fn sends_by_mpi(&self) {
        if let Some(mpi) = &self.mpi {
            mpi.use_nccl(None);
        }
    }

    /// From now on tensors on `device` go between processes by NCCL, in runs of `ranks` ranks, if every process can use it; otherwise by
    /// MPI, and the reason of the first process that cannot is returned. All processes must call it.
    ///
    /// On a GPU the environment must have `CUDA_MODULE_LOADING=EAGER` before the first call of CUDA, as the program `annulus` sets it:
    /// kernels that are loaded at their first launch may wait for a transfer whose other end waits for this process. Without it a process
    /// cannot use NCCL.
    ///
    /// # Errors
    /// A process that is late, gone or stopped.
    pub fn sends_by_nccl(
        &self,
        device: &Device,
        ranks: usize,
    ) -> Result<Option<String>, Failure<Error>> {
        let Some(mpi) = &self.mpi else { return Ok(None) };
        let nccl = mpi.nccl(device, ranks);
        let own = match &nccl {
            Ok(nccl) => format!("+{}", nccl.found.library.version()),
            Err(why) => format!("-{why}"),
        };
        let refused = refusal(&self.gather(own.as_bytes())?);
        mpi.use_nccl(nccl.ok().filter(|_| refused.is_none()));
        Ok(refused)
    }

    /// Blocks until all that ranks here have posted to NCCL in the run that is under way has been sent and received: on a GPU, the
    /// elements of what they received so far are in memory then.
    ///
    /// # Errors
    /// A transfer that failed, and a run that has ended.
    pub fn settle(&self) -> crate::Result<()> {
        self.mpi.as_ref().map_or(Ok(()), |mpi| mpi.settle())
    }

    /// The version and the file of NCCL, if tensors go by it between processes.
    pub fn nccl(&self) -> Option<(String, PathBuf)> {
        let nccl = self.mpi.as_ref()?.nccl_in_use()?;
        Some((nccl.found.library.version(), nccl.found.path))
    }

    /// The version and the file of the library of NCCL that is found here.
    ///
    /// # Errors
    /// When none is found.
    pub fn nccl_here() -> annulus_nccl::Result<String> {
        let found = annulus_nccl::find()?;
        Ok(format!("{} ({})", found.library.version(), found.path.display()))
    }
}

impl MpiProcess {
    /// NCCL for `device`, found once per device, as a library in use must not be unloaded; or why runs of `ranks` ranks cannot use it.
    fn nccl(&self, device: &Device, ranks: usize) -> Result<NcclSetup, String> {
        let mut found = self.found.lock();
        expect_one_rank_each([ranks, self.facts.processes])?;
        let known = found.iter().find(|(of, _)| of.same_device(device));
        if let Some((_, nccl)) = known {
            return Ok(nccl.clone());
        }
        let nccl = nccl(device)?;
        found.push((device.clone(), nccl.clone()));
        Ok(nccl)
    }
}

/// Refuses more than one rank per process, which our use of NCCL does not cover.
fn expect_one_rank_each([ranks, processes]: [usize; 2]) -> Result<(), String> {
    if ranks == processes {
        return Ok(());
    }
    Err(format!("{ranks} ranks on {processes} processes: NCCL joins those of one rank each"))
}

/// NCCL and a stream for its transfers on `device`; or why it cannot be used.
fn nccl(device: &Device) -> Result<NcclSetup, String> {
    // Only our emulated NCCL, which tests name, transfers tensors of a CPU.
    let is_emulated = cfg!(feature = "emulator") && std::env::var_os(annulus_nccl::NAMED).is_some();
    if !device.is_cuda() && !is_emulated {
        return Err(ON_A_CPU.to_owned());
    }
    let found = annulus_nccl::find().map_err(|error| error.to_string())?;
    let lane = annulus_nccl::lane(&found.library, device).map_err(|error| error.to_string())?;
    let lane = lane.ok_or(ON_A_CPU)?;
    Ok(NcclSetup { found, lane })
}

/// Why NCCL is not used, by the answers of all processes: `+` and a version, or `-` and a reason.
fn refusal(all: &[Vec<u8>]) -> Option<String> {
    let all: Vec<_> = all.iter().map(|one| String::from_utf8_lossy(one)).collect();
    for (process, answer) in all.iter().enumerate() {
        if let Some(why) = answer.strip_prefix('-') {
            return Some(format!("process {process}: {why}"));
        }
    }
    let other = all.iter().position(|answer| *answer != all[0])?;
    let [first, second] = [&all[0], &all[other]].map(|answer| answer.trim_start_matches('+'));
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
    fn nccl_needs_one_rank_per_process_and_a_gpu() {
        assert!(expect_one_rank_each([4, 2]).unwrap_err().contains("4 ranks on 2 processes"));
        assert_eq!(expect_one_rank_each([2, 2]), Ok(()));
        assert!(nccl(&Device::Cpu).err().unwrap().contains("computes on a CPU"));
    }
}
