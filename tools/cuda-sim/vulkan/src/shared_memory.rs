//! Shared memory in SPIR-V, as CubeCL declares it.
//!
//! Without `VK_KHR_workgroup_memory_explicit_layout`, which Mesa's lavapipe lacks, CubeCL 0.11.3 gives a variable in shared memory the type of a
//! pointer to a pointer to its values (`cubecl-spirv/src/ops/memory.rs`, `lower_shared_implicit`: the types of the variable and of its address
//! are exchanged). spirv-val refuses such a module, and drivers crash.

use std::collections::HashMap;

/// Words before the first instruction of a module.
const HEADER: usize = 5;
/// `OpTypePointer`, `OpVariable` and the storage class `Workgroup`.
const TYPE_POINTER: u32 = 32;
const VARIABLE: u32 = 59;
const WORKGROUP: u32 = 4;

/// The module with variables in shared memory as pointers to their values. Another module is the same.
pub(crate) fn mended(module: &[u32]) -> Vec<u32> {
    let mut mended = module.to_vec();
    // What pointers to shared memory point to, by their type.
    let mut pointers = HashMap::new();
    let mut at = HEADER;
    while let Some(word) = module.get(at) {
        match (word & 0xffff, module.get(at + 1..at + 4)) {
            (TYPE_POINTER, Some(&[pointer, WORKGROUP, to])) => _ = pointers.insert(pointer, to),
            (VARIABLE, Some(&[pointer, _, WORKGROUP])) => {
                if let Some(to) = pointers.get(&pointer).filter(|to| pointers.contains_key(to)) {
                    mended[at + 1] = *to;
                }
            }
            _ => {}
        }
        at += (word >> 16).max(1) as usize;
    }
    mended
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A module with an instruction before these, and one after them.
    fn module(instructions: &[&[u32]]) -> Vec<u32> {
        let float: &[u32] = &[22, 6, 32];
        let all = [float].into_iter().chain(instructions.iter().copied()).chain([&[253][..]]);
        let words = all.flat_map(|words| {
            let first = (words.len() as u32) << 16 | words[0];
            [first].into_iter().chain(words[1..].to_vec())
        });
        [0; HEADER].into_iter().chain(words).collect()
    }

    #[test]
    fn a_variable_in_shared_memory_points_to_its_values() {
        let pointer: &[u32] = &[TYPE_POINTER, 7, WORKGROUP, 6];
        let pointers: &[u32] = &[TYPE_POINTER, 8, WORKGROUP, 7];
        let of_type = |kind| [VARIABLE, kind, 9, WORKGROUP];
        let right = module(&[pointer, pointers, &of_type(7)]);
        assert_eq!(mended(&module(&[pointer, pointers, &of_type(8)])), right);
        assert_eq!(mended(&right), right);
        // Pointers to pointers elsewhere, and what ends within an instruction.
        let global = module(&[&[TYPE_POINTER, 7, 5349, 6], &[TYPE_POINTER, 8, 9, 7], &[VARIABLE, 8, 9, 9]]);
        assert_eq!(mended(&global), global);
        for length in 0..right.len() {
            assert_eq!(mended(&right[..length]), right[..length]);
        }
    }
}
