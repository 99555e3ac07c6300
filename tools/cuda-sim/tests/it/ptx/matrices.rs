//! Matrix products and their loads and stores, each against a plain product in f64.
//!
//! The indices follow the figures of the PTX manual, "Matrix fragments for mma.m16n8k8" and "… m16n8k16": group
//! `g = lane / 4`, place `q = lane % 4`.

use half::{bf16, f16};

use super::{kernel, launch};

/// Small whole numbers, so that sums are exact in any order.
fn value(seed: usize) -> f32 {
    ((seed * 7919 + 13) % 17) as f32 - 8.0
}

fn pair16(format: &str, low: f32, high: f32) -> u32 {
    let bits = |v: f32| if format == "f16" { f16::from_f32(v).to_bits() } else { bf16::from_f32(v).to_bits() };
    u32::from(bits(low)) | u32::from(bits(high)) << 16
}

fn product(a: &dyn Fn(usize, usize) -> f32, b: &dyn Fn(usize, usize) -> f32, m: usize, n: usize, k: usize) -> f32 {
    (0..k).map(|z| f64::from(a(m, z)) * f64::from(b(z, n))).sum::<f64>() as f32
}

/// Loads `count` words a lane from `data + 128 index` into `%r10..`, and the like for the results.
fn words(first: usize, index: usize, count: usize, store: bool) -> String {
    (0..count)
        .map(|j| {
            let at = (index + j) * 128;
            if store {
                format!("st.global.b32 [%rd1+{at}], %r{};\n", first + j)
            } else {
                format!("ld.global.b32 %r{}, [%rd1+{at}];\n", first + j)
            }
        })
        .collect()
}

const LANE_ADDRESS: &str = "mov.u32 %r1, %laneid; mul.wide.u32 %rd1, %r1, 4; add.s64 %rd1, %d, %rd1;\n";

fn list(first: usize, count: usize) -> String {
    let names: Vec<_> = (first..first + count).map(|j| format!("%r{j}")).collect();
    format!("{{{}}}", names.join(","))
}

/// Checks `mma.sync.aligned.m16n8k{k}` for one format of its operands.
fn check_mma(format: &str, k: usize) {
    let (a, b) = (|m: usize, z: usize| value(m * 31 + z), |z: usize, n: usize| value(1000 + z * 13 + n));
    let c = |m: usize, n: usize| value(5000 + m * 8 + n);
    let tf32 = format == "tf32";
    let (in_a, in_b) = if tf32 { (k / 2, k / 4) } else { (k / 4, k / 8) };
    let mut data = vec![0_u32; 32 * (in_a + in_b + 4)];
    for lane in 0..32 {
        let (g, q) = (lane / 4, lane % 4);
        for j in 0..in_a {
            let row = g + 8 * (j % 2);
            data[j * 32 + lane] = if tf32 {
                a(row, q + 4 * (j / 2)).to_bits()
            } else {
                let column = 2 * q + 8 * (j / 2);
                pair16(format, a(row, column), a(row, column + 1))
            };
        }
        for j in 0..in_b {
            data[(in_a + j) * 32 + lane] = if tf32 {
                b(q + 4 * j, g).to_bits()
            } else {
                pair16(format, b(2 * q + 8 * j, g), b(2 * q + 1 + 8 * j, g))
            };
        }
        for j in 0..4 {
            data[(in_a + in_b + j) * 32 + lane] = c(g + 8 * (j / 2), 2 * q + j % 2).to_bits();
        }
    }
    let load = words(10, 0, in_a + in_b + 4, false);
    let (la, lb, lc) = (list(10, in_a), list(10 + in_a, in_b), list(10 + in_a + in_b, 4));
    let body = format!(
        "{LANE_ADDRESS}{load}mma.sync.aligned.m16n8k{k}.row.col.f32.{format}.{format}.f32 {}, {la}, {lb}, {lc};\n{}",
        list(50, 4),
        words(50, 0, 4, true)
    );
    launch(&kernel("", &body), [1; 3], [32, 1, 1], &mut data).expect("runs");
    for lane in 0..32 {
        for j in 0..4 {
            let (m, n) = (lane / 4 + 8 * (j / 2), 2 * (lane % 4) + j % 2);
            let expected = product(&a, &b, m, n, k) + c(m, n);
            assert_eq!(f32::from_bits(data[j * 32 + lane]), expected, "{format} k {k}: ({m}, {n})");
        }
    }
}

#[test]
fn mma_of_every_format() {
    for (format, k) in [("f16", 8), ("f16", 16), ("bf16", 8), ("bf16", 16), ("tf32", 4), ("tf32", 8)] {
        check_mma(format, k);
    }
}

#[test]
fn mma_with_16_bit_sums() {
    let (a, b) = (|m: usize, z: usize| value(m * 31 + z), |z: usize, n: usize| value(1000 + z * 13 + n));
    let mut data = vec![0_u32; 32 * 8];
    for lane in 0..32 {
        let (g, q) = (lane / 4, lane % 4);
        for j in 0..4 {
            let (row, column) = (g + 8 * (j % 2), 2 * q + 8 * (j / 2));
            data[j * 32 + lane] = pair16("f16", a(row, column), a(row, column + 1));
        }
        for j in 0..2 {
            data[(4 + j) * 32 + lane] = pair16("f16", b(2 * q + 8 * j, g), b(2 * q + 1 + 8 * j, g));
        }
    }
    let body = format!(
        "{LANE_ADDRESS}{}mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 {}, {}, {}, {};\n{}",
        words(10, 0, 8, false),
        list(50, 2),
        list(10, 4),
        list(14, 2),
        list(16, 2),
        words(50, 0, 2, true)
    );
    launch(&kernel("", &body), [1; 3], [32, 1, 1], &mut data).expect("runs");
    for lane in 0..32 {
        for j in 0..2 {
            let (m, n) = (lane / 4 + 8 * j, 2 * (lane % 4));
            let expected = pair16("f16", product(&a, &b, m, n, 16), product(&a, &b, m, n + 1, 16));
            assert_eq!(data[j * 32 + lane], expected, "({m}, {n})");
        }
    }
}

#[test]
fn tf32_operands_lose_their_low_bits() {
    // 1 + 2^-12 is 1 in TF32 when it is read as it is; eight products of it with 1 sum to 8
    let mut data = vec![0_u32; 32 * 10];
    data[..128].fill((1.0 + 2.0_f32.powi(-12)).to_bits());
    data[128..192].fill(1.0_f32.to_bits());
    let body = format!(
        "{LANE_ADDRESS}{}mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {}, {}, {}, {};\n{}",
        words(10, 0, 10, false),
        list(50, 4),
        list(10, 4),
        list(14, 2),
        list(16, 4),
        words(50, 0, 4, true)
    );
    launch(&kernel("", &body), [1; 3], [32, 1, 1], &mut data).expect("runs");
    assert!(data[..128].iter().all(|&v| f32::from_bits(v) == 8.0));
}

/// `wmma` with the operands in memory by rows or by columns.
fn check_wmma(shape: (usize, usize, usize), format: &str, a_by: &str, b_by: &str) {
    let (m, n, k) = shape;
    let (a, b) = (|r: usize, z: usize| value(r * 31 + z), |z: usize, c: usize| value(1000 + z * 13 + c));
    let wide = format == "tf32";
    let size = if wide { 4 } else { 2 };
    // leading dimensions with a gap
    let (lda, ldb) = (if a_by == "row" { k + 8 } else { m + 8 }, if b_by == "row" { n + 8 } else { k + 8 });
    let mut bytes = vec![0_u8; 8192];
    let mut put = |base: usize, at: usize, v: f32| {
        let target = &mut bytes[base + at * size..][..size];
        match format {
            "tf32" => target.copy_from_slice(&v.to_le_bytes()),
            "f16" => target.copy_from_slice(&f16::from_f32(v).to_le_bytes()),
            _ => target.copy_from_slice(&bf16::from_f32(v).to_le_bytes()),
        }
    };
    for z in 0..k {
        for r in 0..m {
            put(0, if a_by == "row" { r * lda + z } else { z * lda + r }, a(r, z));
        }
        for c in 0..n {
            put(4096, if b_by == "row" { z * ldb + c } else { c * ldb + z }, b(z, c));
        }
    }
    let mut data: Vec<u32> = bytes.chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
    let name = format!("m{m}n{n}k{k}");
    let (in_a, in_b) = match format {
        "f16" => (8, 8),
        "tf32" => (4, 4),
        _ => (m * k / 64, k * n / 64),
    };
    let types = if format == "f16" { "f32.f32".to_owned() } else { format!("f32.{format}.{format}.f32") };
    let (la, lb, lc, ld) = (list(10, in_a), list(20, in_b), list(30, 8), list(40, 8));
    let zeros: String = (30..38).map(|j| format!("mov.b32 %r{j}, 0f3F800000;\n")).collect();
    let body = format!(
        "{zeros}add.s64 %rd1, %d, 4096;\n\
         wmma.load.a.sync.aligned.{a_by}.{name}.global.{format} {la}, [%d], {lda};\n\
         wmma.load.b.sync.aligned.{b_by}.{name}.global.{format} {lb}, [%rd1], {ldb};\n\
         wmma.mma.sync.aligned.{a_by}.{b_by}.{name}.{types} {ld}, {la}, {lb}, {lc};\n\
         wmma.store.d.sync.aligned.row.{name}.global.f32 [%d],{ld}, {};",
        n + 4
    );
    launch(&kernel("", &body), [1; 3], [32, 1, 1], &mut data).expect("runs");
    for r in 0..m {
        for c in 0..n {
            let found = f32::from_bits(data[r * (n + 4) + c]);
            assert_eq!(found, product(&a, &b, r, c, k) + 1.0, "{name} {format} {a_by} {b_by}: ({r}, {c})");
        }
    }
}

#[test]
fn wmma_of_every_shape() {
    for a_by in ["row", "col"] {
        for b_by in ["row", "col"] {
            for shape in [(16, 16, 16), (32, 8, 16), (8, 32, 16)] {
                check_wmma(shape, "f16", a_by, b_by);
                check_wmma(shape, "bf16", a_by, b_by);
            }
            check_wmma((16, 16, 8), "tf32", a_by, b_by);
        }
    }
}

#[test]
fn a_sum_converted_register_by_register_stays_in_place() {
    // f32 sums are loaded, converted in pairs as fragment casts do, and stored as 16-bit sums
    let mut data: Vec<u32> = (0..256).map(|i| value(i).to_bits()).collect();
    let convert: String =
        (0..4).map(|j| format!("cvt.rn.f16x2.f32 %r{}, %r{}, %r{};\n", 20 + j, 11 + 2 * j, 10 + 2 * j)).collect();
    let body = format!(
        "wmma.load.c.sync.aligned.row.m16n16k16.global.f32 {}, [%d], 16;\n{convert}\
         wmma.store.d.sync.aligned.row.m16n16k16.global.f16 [%d], {}, 16;",
        list(10, 8),
        list(20, 4)
    );
    launch(&kernel("", &body), [1; 3], [32, 1, 1], &mut data).expect("runs");
    for (i, &found) in data[..128].iter().enumerate() {
        assert_eq!(found, pair16("f16", value(2 * i), value(2 * i + 1)), "elements {} and {}", 2 * i, 2 * i + 1);
    }
}

/// `ldmatrix` from shared memory, and `stmatrix` back: element `(row, column)` of tile `t` is `64 t + 8 row + column`.
fn check_rows(count: usize, transposed: bool) {
    let trans = if transposed { ".trans" } else { "" };
    let tiles: Vec<u16> = (0..count * 64).map(|i| i as u16).collect();
    let mut data: Vec<u32> =
        tiles.chunks_exact(2).map(|p| u32::from(p[0]) | u32::from(p[1]) << 16).chain(vec![0; 256]).collect();
    data.resize(512, 0);
    let copy: String = (0..count)
        .map(|t| format!("ld.global.b32 %r9, [%rd1+{0}]; st.shared.b32 [%rd3+{0}], %r9;\n", 128 * t))
        .collect();
    let back: String = (0..count)
        .map(|t| {
            format!("ld.shared.b32 %r9, [%rd3+{}]; st.global.b32 [%rd1+{}], %r9;\n", 1024 + 128 * t, 512 + 128 * t)
        })
        .collect();
    let body = format!(
        "{LANE_ADDRESS}mov.b64 %rd2, tile; mul.wide.u32 %rd3, %r1, 4; add.s64 %rd3, %rd2, %rd3;\n\
         mul.wide.u32 %rd4, %r1, 16; add.s64 %rd4, %rd2, %rd4;\n{copy}\
         ldmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16 {0}, [%rd4];\n\
         stmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16 [%rd4+1024], {0};\n{back}{1}",
        list(10, count),
        words(10, 0, count, true)
    );
    let module = kernel(".shared .align 128 .b8 tile[2048];", &body);
    launch(&module, [1; 3], [32, 1, 1], &mut data).expect("runs");
    for t in 0..count {
        for lane in 0..32 {
            let (row, column) = (lane / 4, 2 * (lane % 4));
            let at = |r: usize, c: usize| (64 * t + if transposed { 8 * c + r } else { 8 * r + c }) as u32;
            assert_eq!(data[32 * t + lane], at(row, column) | at(row, column + 1) << 16, "tile {t} lane {lane}");
            let i = (64 * t + 2 * lane) as u32;
            assert_eq!(data[128 + 32 * t + lane], i | (i + 1) << 16, "stored tile {t} word {lane}");
        }
    }
}

#[test]
fn rows_of_tiles_go_both_ways() {
    for count in [1, 2, 4] {
        check_rows(count, false);
        check_rows(count, true);
    }
}
