//! Whether tensors can go between processes by NCCL: all must say so.

use candle_core::Device;

use super::express::Joined;

const ON_A_CPU: &str = "it computes on a CPU, and NCCL joins GPUs";

/// NCCL joins processes of one rank each.
pub(super) fn of_one_rank_each([ranks, processes]: [usize; 2]) -> Result<(), String> {
    if ranks == processes {
        return Ok(());
    }
    Err(format!("{ranks} ranks on {processes} processes: NCCL joins those of one rank each"))
}

/// NCCL and a stream of its own on `device`; or why not.
pub(super) fn nccl(device: &Device) -> Result<Joined, String> {
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
pub(crate) fn refusal(all: &[Vec<u8>]) -> Option<String> {
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
