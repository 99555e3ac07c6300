//! Blocks of codes: equal to recorded ones, and near to any values.

use std::path::Path;

use kiln_optimizers::{Blocks, CodeBook, Error, check_finite, dequantize, quantize};
use proptest::prelude::*;
use safetensors::SafeTensors;

const ALL: [CodeBook; 5] =
    [CodeBook::Dynamic, CodeBook::DynamicUnsigned, CodeBook::Root, CodeBook::Dynamic4, CodeBook::Linear4];

/// The numbers of `values` in the script that recorded the results.
fn values(count: u64, seed: u64, exponents: u64) -> Vec<f32> {
    let value = |index: u64| {
        let (index, modulus) = (index + seed, 1 << 32);
        let mixed = (index * 2_654_435_761 % modulus) ^ (index * 40_503 % modulus);
        let signed = (mixed >> 8) as f64 / f64::from(1 << 23) - 1.0;
        (signed / 2f64.powi((mixed % exponents) as i32)) as f32
    };
    (0..count).map(value).collect()
}

/// The numbers of `ties` in the script that recorded the results.
fn ties(book: &[f32]) -> Vec<f32> {
    let middle = |pair: &[f32]| (pair[0] + pair[1]) / 2.0;
    let middles = book.windows(2).map(middle);
    let all: Vec<f32> = middles.flat_map(|middle| [middle.next_down(), middle, middle.next_up()]).collect();
    let size = if book.len() == 256 { 256 } else { 128 };
    all.chunks(size - 1).flat_map(|part| [&[1.0], part].concat()).collect()
}

/// The codes, with one code in each byte.
fn unpacked(blocks: &Blocks, book: CodeBook) -> Vec<u8> {
    match book.bits() {
        4 => blocks.codes.iter().flat_map(|byte| [byte >> 4, byte & 15]).take(blocks.count).collect(),
        _ => blocks.codes.clone(),
    }
}

#[test]
fn codes_and_scales_are_those_of_bitsandbytes_and_torchao() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/optimizers/blocks.safetensors");
    let file = std::fs::read(path).unwrap();
    let recorded = SafeTensors::deserialize(&file).unwrap();
    let floats = |name: &str| -> Vec<f32> { bytemuck::pod_collect_to_vec(recorded.tensor(name).unwrap().data()) };
    let books = [
        (CodeBook::Dynamic, "dynamic"),
        (CodeBook::DynamicUnsigned, "dynamic_unsigned"),
        (CodeBook::Dynamic4, "dynamic4"),
        (CodeBook::Linear4, "linear4"),
    ];
    for (book, name) in books {
        // bitsandbytes overwrites the first entry with -1, also that of the map without a sign.
        let used = floats(&format!("{name}.{}", if book == CodeBook::Dynamic { "used_book" } else { "book" }));
        assert_eq!(book.entries(), used, "{name}");
        let small = values(600, 3, 8).into_iter().map(|value| value / 2f32.powi(100)).collect();
        let mut cases = vec![
            ("near", values(1000, 1, 1)),
            ("far", values(3000, 7, 30)),
            ("ties", ties(&floats(&format!("{name}.used_book")))),
        ];
        if book.bits() == 8 {
            cases.push(("small", small));
        }
        for (case, values) in cases {
            let values: Vec<f32> = match book.is_signed() {
                true => values,
                false => values.into_iter().map(f32::abs).collect(),
            };
            let blocks = quantize(&values, book).unwrap();
            assert_eq!(blocks.scales, floats(&format!("{name}.{case}.scales")), "{name}, {case}");
            let codes = recorded.tensor(&format!("{name}.{case}.codes")).unwrap().data().to_vec();
            assert_eq!(unpacked(&blocks, book), codes, "{name}, {case}");
        }
    }
}

/// Half of the distances from an entry to the entries beside it.
fn half_gaps(entries: &[f32], code: usize) -> f64 {
    let at = |code: usize| f64::from(entries[code]);
    let below = if code > 0 { at(code) - at(code - 1) } else { 0.0 };
    let above = if code + 1 < entries.len() { at(code + 1) - at(code) } else { 0.0 };
    f64::max(below, above) / 2.0
}

/// Checks the stated bounds, for values of any kind.
fn is_near(values: &[f32], book: CodeBook) -> Result<(), TestCaseError> {
    let values: Vec<f32> = match book.is_signed() {
        true => values.to_vec(),
        false => values.iter().copied().map(f32::abs).collect(),
    };
    let blocks = quantize(&values, book).unwrap();
    prop_assert_eq!(blocks.codes.len() + 4 * blocks.scales.len(), book.bytes(values.len()));
    let back = dequantize(&blocks, book).unwrap();
    let codes = unpacked(&blocks, book);
    for (index, ((value, back), code)) in values.iter().zip(&back).zip(codes).enumerate() {
        let scale = f64::from(blocks.scales[index / book.block()]);
        let (value, back, code) = (f64::from(*value), f64::from(*back), usize::from(code));
        prop_assert!(value.abs() <= scale);
        if scale == 0.0 {
            prop_assert_eq!(back, 0.0);
            continue;
        }
        let (part, entry) = (value / scale, f64::from(book.entries()[code]));
        match book {
            CodeBook::Root if code == 1 => prop_assert!(part > 0.0 && part.sqrt() <= 1.501 / 255.0),
            CodeBook::Root => prop_assert!((part.sqrt() - entry.sqrt()).abs() <= 0.5001 / 255.0, "{part} {entry}"),
            // The smallest number above 0 is never 0.
            CodeBook::DynamicUnsigned if code == 1 => prop_assert!(part > 0.0 && part <= 5.6e-7),
            // No entry is below 1/16.
            CodeBook::Linear4 if code == 0 => prop_assert!(part <= 1.501 / 16.0),
            _ => {
                let bound = half_gaps(book.entries(), code) * 1.00001 + 1e-12;
                prop_assert!((part - entry).abs() <= bound, "{} as {}: {}", part, entry, bound);
            }
        }
        // Encoding and decoding round once, also for denormal numbers.
        prop_assert!((back - entry * scale).abs() <= 1e-7 * (entry * scale).abs() + 1e-45);
    }
    Ok(())
}

/// Values of one block size and others: numbers of all sizes, denormal ones and zeros of both signs, constants, one outlier.
fn contents() -> impl Strategy<Value = Vec<f32>> {
    let finite = any::<f32>().prop_map(|value| if value.is_finite() { value } else { 0.0 });
    let denormal =
        (0u32..0x80_0000, any::<bool>()).prop_map(|(bits, sign)| f32::from_bits(bits | u32::from(sign) << 31));
    let usual = (-1f32..1.0, -30i32..1).prop_map(|(value, exponent)| value * 2f32.powi(exponent));
    let outlier = (prop::collection::vec(usual.clone(), 1..700), 1e3f32..1e30, any::<prop::sample::Index>()).prop_map(
        |(mut values, large, place)| {
            let place = place.index(values.len());
            values[place] = large;
            values
        },
    );
    prop_oneof![
        prop::collection::vec(finite.clone(), 0..700),
        prop::collection::vec(denormal, 0..700),
        prop::collection::vec(usual, 0..700),
        prop::collection::vec(prop_oneof![Just(0.0), Just(-0.0)], 0..300),
        (finite, 0usize..600).prop_map(|(value, count)| vec![value; count]),
        outlier,
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn errors_are_within_bounds(values in contents()) {
        for book in ALL {
            is_near(&values, book)?;
        }
    }

    #[test]
    fn what_was_dequantised_is_exact_the_second_time(values in contents()) {
        // Denormal scales leave too few bits to tell entries apart.
        let values: Vec<f32> = values.iter().map(|value| if value.abs() < 1e-30 { 0.0 } else { *value }).collect();
        let back = dequantize(&quantize(&values, CodeBook::Dynamic).unwrap(), CodeBook::Dynamic).unwrap();
        let again = dequantize(&quantize(&back, CodeBook::Dynamic).unwrap(), CodeBook::Dynamic).unwrap();
        prop_assert_eq!(again, back);
    }
}

#[test]
fn values_that_cannot_be_quantised_are_errors() {
    for value in [f32::INFINITY, f32::NEG_INFINITY, f32::NAN] {
        let values = [&[1.0; 300], &[value][..], &[2.0; 5]].concat();
        for book in ALL {
            let error = quantize(&values, book).unwrap_err();
            assert!(matches!(error, Error::NotFinite { index: 300, .. }), "{error}");
        }
        assert!(check_finite(&values).is_err());
    }
    assert_eq!(check_finite(&[0.0, f32::MAX]), Ok(()));
    for book in [CodeBook::DynamicUnsigned, CodeBook::Root, CodeBook::Linear4] {
        let error = quantize(&[0.5, -0.0, -0.25], book).unwrap_err();
        assert_eq!(error, Error::Negative { index: 2, value: -0.25 });
        assert_eq!(error.to_string(), "value 2 is -0.25, expected at least 0 for a code book without a sign");
    }
}

#[test]
fn codes_and_scales_of_another_number_of_values_are_an_error() {
    let mut blocks = quantize(&[1.0; 300], CodeBook::Dynamic).unwrap();
    assert!(dequantize(&blocks, CodeBook::Linear4).is_err());
    // As many codes as there cannot be.
    for (count, book) in
        [(usize::MAX, CodeBook::Dynamic), (usize::MAX, CodeBook::Linear4), (usize::MAX / 4 + 1, CodeBook::Dynamic4)]
    {
        let error = dequantize(&Blocks { count, ..blocks.clone() }, book).unwrap_err();
        assert!(matches!(error, Error::BlockLength { .. }), "{error}");
    }
    blocks.scales.pop();
    let error = dequantize(&blocks, CodeBook::Dynamic).unwrap_err();
    assert_eq!(error.to_string(), "300 bytes of codes and 1 scales for 300 values, expected 300 and 2");
}
