//! Reads safetensors files, and writes one, piece by piece: burn's and the format's own writer have each tensor in memory as a whole, twice, and
//! burn's reader maps the file, so that all of it counts as memory of the process.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, BufWriter, Read, Write};
use std::path::Path;

use burn::store::burn_pack::{AtomicFile, Tensor};
use burn::tensor::{BoolStore, Bytes, DType};
use safetensors::Dtype;
use safetensors::tensor::{Metadata, TensorInfo};
use serde::Deserialize;

/// The most bytes of a tensor that are read at once, if they are elsewhere.
const PIECE: usize = 8 << 20;

/// The most bytes of a header, as in the format's own reader.
const HEADER: u64 = 100_000_000;

/// The dtypes of files and their names in the format.
const DTYPES: [(DType, Dtype); 12] = [
    (DType::F64, Dtype::F64),
    (DType::F32, Dtype::F32),
    (DType::F16, Dtype::F16),
    (DType::BF16, Dtype::BF16),
    (DType::I64, Dtype::I64),
    (DType::I32, Dtype::I32),
    (DType::I16, Dtype::I16),
    (DType::I8, Dtype::I8),
    (DType::U64, Dtype::U64),
    (DType::U32, Dtype::U32),
    (DType::U8, Dtype::U8),
    (DType::Bool(BoolStore::Native), Dtype::BOOL),
];

/// The file of a model in a folder, and the index of a model in several files.
const MODEL: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

/// The names of tensors, and the files that have them.
#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

/// The tensors of the file at `path`, of all files of an index, or of the model in a folder. Their bytes are read when they are used.
///
/// # Errors
/// The reason.
pub(crate) fn read(path: &Path) -> Result<Vec<Tensor>, String> {
    if path.is_dir() {
        let found = [MODEL, INDEX].map(|name| path.join(name)).into_iter().find(|file| file.is_file());
        return found.map_or_else(|| Err(format!("the folder has neither {MODEL} nor {INDEX}")), |file| read(&file));
    }
    if path.extension().is_none_or(|extension| extension != "json") {
        return read_file(path);
    }
    let text = std::fs::read_to_string(path).map_err(|e| e.to_string())?;
    let Index { weight_map } =
        serde_json::from_str(&text).map_err(|e| format!("not an index of safetensors files: {e}"))?;
    let mut tensors = vec![];
    let files: BTreeSet<&String> = weight_map.values().collect();
    for file in files {
        // A name with a folder in it could be any file of the machine.
        if Path::new(file).file_name() != Some(OsStr::new(file)) {
            return Err(format!("it names the file '{file}', expected one beside it"));
        }
        let found = read_file(&path.with_file_name(file)).map_err(|reason| format!("{file}: {reason}"))?;
        // A tensor of another file's may be left over from an older model.
        tensors.extend(found.into_iter().filter(|tensor| weight_map.get(&tensor.name) == Some(file)));
    }
    let found: BTreeSet<&str> = tensors.iter().map(|tensor| tensor.name.as_str()).collect();
    match weight_map.iter().find(|(name, _)| !found.contains(name.as_str())) {
        Some((name, file)) => Err(format!("'{name}' is missing in {file}")),
        None => Ok(tensors),
    }
}

/// The tensors of one file.
fn read_file(path: &Path) -> Result<Vec<Tensor>, String> {
    if !path.is_file() {
        return Err("no such file".into());
    }
    let io = |e: io::Error| e.to_string();
    let mut file = File::open(path).map_err(io)?;
    let length = file.metadata().map_err(io)?.len();
    let mut size = [0; 8];
    file.read_exact(&mut size).map_err(|_| format!("not a safetensors file: it has {length} bytes"))?;
    let size = u64::from_le_bytes(size);
    let Some(data) = size.checked_add(8).filter(|data| *data <= length && size <= HEADER) else {
        return Err(format!("not a safetensors file: its header would have {size} bytes, and the file has {length}"));
    };
    let mut header = vec![0; size as usize];
    file.read_exact(&mut header).map_err(io)?;
    let metadata: Metadata =
        serde_json::from_slice(&header).map_err(|e| format!("not a safetensors file: its header is refused: {e}"))?;
    let expected = data.saturating_add(metadata.data_len() as u64);
    if expected != length {
        return Err(format!("it has {length} bytes, and by its header {expected}: it is cut off, or was changed"));
    }
    let mut tensors = Vec::new();
    for (name, info) in metadata.tensors() {
        let known = DTYPES.iter().find(|(_, dtype)| *dtype == info.dtype);
        let Some((dtype, _)) = known else { return Err(format!("tensor '{name}' is {:?}", info.dtype)) };
        let (start, end) = info.data_offsets;
        let bytes = match end - start {
            0 => Bytes::from_bytes_vec(vec![]),
            bytes => Bytes::from_file(path, bytes as u64, data + start as u64),
        };
        tensors.push(Tensor::new(name, *dtype, info.shape.clone(), None, bytes));
    }
    Ok(tensors)
}

/// Writes `tensors` to `path`. An older file is replaced when the new one is complete.
///
/// # Errors
/// The reason.
pub(crate) fn write(path: &Path, tensors: Vec<Tensor>) -> Result<(), String> {
    let (tensors, header) = header(tensors)?;
    let (scratch, file) = AtomicFile::create(path).map_err(|e| e.to_string())?;
    let mut file = BufWriter::new(file);
    let io = |e: io::Error| e.to_string();
    file.write_all(&(header.len() as u64).to_le_bytes()).and_then(|()| file.write_all(&header)).map_err(io)?;
    for tensor in tensors {
        let bytes = tensor.to_bytes().map_err(|e| format!("{}: {e}", tensor.name))?;
        for start in (0..bytes.len()).step_by(PIECE) {
            let end = (start + PIECE).min(bytes.len());
            // Bytes that are in memory have no view.
            match bytes.view(start, end) {
                Ok(piece) => file.write_all(&piece),
                Err(_) => file.write_all(&bytes[start..end]),
            }
            .map_err(io)?;
        }
    }
    drop(file.into_inner().map_err(|e| e.to_string())?);
    scratch.commit().map_err(|e| e.to_string())
}

/// The tensors in the order of the file, and its header. The format has large dtypes first, and names in their order.
fn header(tensors: Vec<Tensor>) -> Result<(Vec<Tensor>, Vec<u8>), String> {
    let with_dtype = |tensor: Tensor| Ok((dtype(&tensor)?, tensor));
    let mut tensors = tensors.into_iter().map(with_dtype).collect::<Result<Vec<_>, String>>()?;
    tensors.sort_by(|(left, a), (right, b)| right.cmp(left).then_with(|| a.name.cmp(&b.name)));
    let mut end = 0;
    let infos = tensors.iter().map(|(dtype, tensor)| {
        let start = end;
        end += tensor.byte_len();
        let info = TensorInfo { dtype: *dtype, shape: tensor.shape.to_vec(), data_offsets: (start, end) };
        (tensor.name.clone(), info)
    });
    let format = HashMap::from([("format".to_owned(), "pt".to_owned())]);
    let metadata = Metadata::new(Some(format), infos.collect()).map_err(|e| e.to_string())?;
    let mut header = serde_json::to_vec(&metadata).map_err(|e| e.to_string())?;
    header.resize(header.len().next_multiple_of(8), b' ');
    Ok((tensors.into_iter().map(|(_, tensor)| tensor).collect(), header))
}

fn dtype(tensor: &Tensor) -> Result<Dtype, String> {
    let known = DTYPES.iter().find(|(dtype, _)| *dtype == tensor.dtype);
    known
        .map(|(_, dtype)| *dtype)
        .ok_or_else(|| format!("tensor '{}' is {:?}, which a file of a model does not have", tensor.name, tensor.dtype))
}
