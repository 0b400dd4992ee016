//! Peak speeds of GPUs by NVIDIA's data sheets, which model FLOPs utilization is relative to.

use super::Gpu;

/// Words of products that are slower, or parts of one: a laptop's, Chinese exports, faster or slower siblings, slices of a GPU.
const OTHERS: [&str; 9] = ["Laptop", "Mobile", "Max", "D", "Ti", "SUPER", "Super", "MIG", "GRID"];

/// Dense TFLOP/s of products of bf16 or f16 with sums in f32, by words of a GPU's name; the first match holds.
const TENSOR_CORES: [(&[&str], f64); 23] = [
    (&["GB300"], 2500.0),
    (&["GB200"], 2500.0),
    (&["B300"], 2250.0),
    (&["B200"], 2250.0),
    (&["H200", "NVL"], 835.5),
    (&["H200"], 989.4),
    (&["GH200"], 989.4),
    (&["H100", "PCIe"], 756.5),
    (&["H100", "NVL"], 835.5),
    (&["H100"], 989.4),
    (&["A100"], 312.0),
    (&["A800"], 312.0),
    (&["A40"], 149.7),
    (&["A30"], 165.0),
    (&["A10"], 125.0),
    (&["L40S"], 362.0),
    (&["L40"], 181.0),
    (&["L4"], 121.0),
    (&["RTX", "6000", "Ada"], 364.2),
    (&["RTX", "A6000"], 154.8),
    (&["RTX", "5090"], 209.5),
    (&["RTX", "4090"], 165.2),
    (&["RTX", "3090"], 71.0),
];

impl Gpu {
    /// The peak FLOP/s of bf16 or f16 products, without sparsity; `None`: the GPU's data sheet is not known here.
    pub fn tensor_peak(&self) -> Option<f64> {
        tensor_peak(&self.name)
    }
}

fn tensor_peak(name: &str) -> Option<f64> {
    let words: Vec<&str> = name.split([' ', '-']).collect();
    if words.iter().any(|word| OTHERS.contains(word) || is_virtual(word)) {
        return None;
    }
    let fits = |wanted: &[&str]| wanted.iter().all(|word| words.contains(word));
    TENSOR_CORES.iter().find(|(wanted, _)| fits(wanted)).map(|(_, peak)| peak * 1e12)
}

/// Whether a word names a share of a GPU that a virtual machine has, as in `NVIDIA A40-12Q`: gigabytes, and what they are licensed for.
fn is_virtual(word: &str) -> bool {
    let size = word.strip_suffix(['A', 'B', 'C', 'Q']).unwrap_or_default();
    !size.is_empty() && size.chars().all(|digit| digit.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::tensor_peak;

    #[test]
    fn a_gpu_is_known_by_words_of_its_name() {
        let names =
            ["NVIDIA H200", "NVIDIA H100 PCIe", "NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB"];
        let peaks = names.map(|name| tensor_peak(name).map(|peak| (peak / 1e11) as u64));
        assert_eq!(peaks, [9894, 7565, 9894, 3120].map(Some));
        assert_eq!(["NVIDIA A10G", "Tesla V100-SXM2-16GB", ""].map(tensor_peak), [None; 3]);
        assert!(tensor_peak("NVIDIA GeForce RTX 4090").is_some());
    }

    #[test]
    fn other_products_with_the_same_words_are_not_known() {
        let names = [
            "NVIDIA GeForce RTX 4090 Laptop GPU",
            "NVIDIA GeForce RTX 4090 D",
            "NVIDIA GeForce RTX 3090 Ti",
            "NVIDIA A100-SXM4-40GB MIG 1g.5gb",
            "NVIDIA H200 MIG 3g.71gb",
            "NVIDIA RTX 6000 Ada Max-Q",
            "NVIDIA A40-12Q",
            "GRID A100-10C",
        ];
        assert_eq!(names.map(tensor_peak), [None; 8]);
    }
}
