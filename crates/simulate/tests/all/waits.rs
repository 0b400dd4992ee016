//! What a step waits for beside its passes.

use annulus_simulate::{Cluster, Estimate, Link};

use crate::support::{cluster, plan_apart};

/// Messages of attention within a node leave the link to other nodes free: sums take what their own bytes take, and backward hides its
/// seconds of them.
#[test]
fn sums_wait_only_for_bytes_on_their_own_link() {
    for strategy in ["attention.strategy=ring", "attention.strategy=megatron"] {
        let plan =
            plan_apart(&["mesh.data=2", "data.batch=2", "parallel.state=replicated", strategy]);
        let sum = |between: f64| {
            let mut cluster = cluster();
            cluster.between.bandwidth = between;
            let found = Estimate::of(&plan, &cluster).expect("16 devices");
            assert_eq!(found.sent[1], 0, "{strategy}");
            found.gradient_sum
        };
        // Scattered and gathered, both over 16 ranks.
        let bytes = 2.0 * 15.0 / 16.0 * plan.gradient_bytes() as f64;
        let found = (sum(1e9) - sum(2e9)) / (1.0 / 1e9 - 1.0 / 2e9);
        assert!((found / bytes - 1.0).abs() < 1e-6, "{strategy}: {found} {bytes}");
        assert!(sum(2e9) < bytes / 2e9, "{strategy}: backward hides some");
    }
}

/// Whatever is made faster, a step takes no longer: no second of a link or a pass hides two things.
#[test]
fn faster_devices_and_links_never_make_a_step_longer() {
    let factors = [0.3, 0.5, 0.8, 1.0, 1.5, 3.0, 10.0];
    let apply: [fn(&mut Cluster, f64); 6] = [
        |cluster, times| cluster.rates.products *= times,
        |cluster, times| cluster.rates.forward *= times,
        |cluster, times| cluster.rates.backward *= times,
        |cluster, times| cluster.inside.bandwidth *= times,
        |cluster, times| cluster.between.bandwidth *= times,
        |cluster, times| cluster.offload.iter_mut().for_each(|link| link.bandwidth *= times),
    ];
    for strategy in ["megatron", "ring", "ulysses"] {
        for [state, offload] in [
            ["replicated", "none"],
            ["zero3", "none"],
            ["zero3", "activations"],
            ["replicated", "activations"],
        ] {
            for mesh in ["sequence: 16", "sequence: 8, data: 2", "sequence: 4, data: 2, tensor: 2"]
            {
                let plan = plan_apart(&[
                    "data={ tokens: 32k, batch: 4 }",
                    "memory.micro_batch=1",
                    "model.num_key_value_heads=32",
                    &format!("attention.strategy={strategy}"),
                    &format!("parallel.state={state}"),
                    &format!("memory.offload={offload}"),
                    &format!("mesh={{ {mesh} }}"),
                ]);
                for (which, apply) in apply.iter().enumerate() {
                    let step = |times: &f64| {
                        let mut cluster = cluster();
                        cluster.offload = Some(Link { bandwidth: 45e9, latency: 0.0 });
                        apply(&mut cluster, *times);
                        Estimate::of(&plan, &cluster).expect("16 devices").step
                    };
                    let steps: Vec<f64> = factors.iter().map(step).collect();
                    let falls = steps.is_sorted_by(|a, b| *b <= a * (1.0 + 1e-9));
                    assert!(falls, "{strategy} {state} {offload} {mesh}, rate {which}: {steps:?}");
                }
            }
        }
    }
}
