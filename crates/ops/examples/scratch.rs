use gemm::Parallelism;
fn cpu() -> f64 {
    std::fs::read_to_string("/proc/self/schedstat")
        .unwrap()
        .split(' ')
        .next()
        .unwrap()
        .parse::<f64>()
        .unwrap()
        / 1e9
}
fn mm(m: usize, n: usize, k: usize, tr: usize, tc: usize, mode: u8) -> f64 {
    let a = vec![0.5f32; m * k];
    let b = vec![0.25f32; n * k];
    let mut c = vec![0f32; m * n];
    let mut best = f64::INFINITY;
    let (acs, ars, bcs, brs) = match mode {
        0 => (1, k, k, 1),
        1 => (1, k, 1, n),
        _ => (m, 1, 1, n),
    };
    for _ in 0..6 {
        let t = cpu();
        for r in (0..m).step_by(tr) {
            for cc in (0..n).step_by(tc) {
                unsafe {
                    gemm::gemm(
                        tr.min(m - r),
                        tc.min(n - cc),
                        k,
                        c.as_mut_ptr().add(r * n + cc),
                        1,
                        n as isize,
                        false,
                        a.as_ptr().add(r * ars),
                        acs as isize,
                        ars as isize,
                        b.as_ptr().add(cc * bcs),
                        bcs as isize,
                        brs as isize,
                        0.0,
                        1.0,
                        false,
                        false,
                        false,
                        Parallelism::None,
                    );
                }
            }
        }
        best = best.min(cpu() - t);
    }
    2.0 * (m * n * k) as f64 / best / 1e9
}
fn main() {
    for (m, n, k) in [(4096, 688, 256), (4096, 256, 688), (2048, 2816, 1024), (1024, 8192, 256)] {
        for mode in [0u8, 1, 2] {
            print!("{m}x{n}x{k} mode {mode}:");
            for (tr, tc) in [
                (64, 512),
                (128, 256),
                (128, 512),
                (256, 256),
                (256, 512),
                (256, 1024),
                (512, 512),
                (512, 4096),
            ] {
                print!(" {tr}x{tc}={:.0}", mm(m, n, k, tr, tc, mode));
            }
            println!();
        }
    }
}
