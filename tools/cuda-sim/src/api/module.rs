//! Modules, their functions and variables.

use super::driver;
use super::machine::current;
use super::pointer::{In, Out, Text};
use crate::driver::{Answer, Code, Handle, Refusal, Sim};

/// `CU_JIT_ERROR_LOG_BUFFER` and `CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES`.
const ERROR_LOG: u32 = 5;
const ERROR_LOG_BYTES: u32 = 6;

/// Loads PTX; a cubin or a fat binary, which are machine code, is no image that can run here.
fn load(sim: &Sim, image: &Text) -> Result<Handle, Refusal> {
    let bytes = image.bytes()?;
    let binary =
        [&b"\x7fELF"[..], b"\x50\xed\x55\xba", b"\xb1\x43\x62\x46"].iter().any(|magic| bytes.starts_with(magic));
    if binary {
        let words = "the image is machine code, and only PTX can run here".to_owned();
        return Err(Refusal { code: Code::NO_BINARY_FOR_GPU, words });
    }
    sim.load_module(current(), image.text().map_err(|_| Code::INVALID_IMAGE)?)
}

/// Writes why a module was refused where the program's options say.
fn write_log(words: &str, (count, options, values): (u32, &In<u32>, &In<usize>)) -> Answer {
    let value =
        |wanted| (0..count as usize).find(|at| options.at(*at) == Ok(wanted)).map(|at| values.at(at)).transpose();
    let (Some(buffer), Some(bytes)) = (value(ERROR_LOG)?, value(ERROR_LOG_BYTES)?) else { return Ok(()) };
    Out::from_address(buffer).put_text(words, i32::try_from(bytes).unwrap_or(i32::MAX))
}

driver! {
    /// Loads a module from memory.
    fn cuModuleLoadData(module: Out<Handle>, image: Text) |sim| {
        module.put(load(sim, &image).map_err(|refusal| refusal.code)?)
    }

    /// Loads a module from memory; of the options, the buffer for errors is used.
    fn cuModuleLoadDataEx(module: Out<Handle>, image: Text, count: u32, options: In<u32>, values: In<usize>) |sim| {
        match load(sim, &image) {
            Ok(loaded) => module.put(loaded),
            Err(refusal) => {
                write_log(&refusal.words, (count, &options, &values))?;
                Err(refusal.code)
            }
        }
    }

    /// Loads a module from a file.
    fn cuModuleLoad(module: Out<Handle>, path: Text) |sim| {
        let bytes = std::fs::read(path.text()?).map_err(|_| Code::FILE_NOT_FOUND)?;
        let text = String::from_utf8(bytes).map_err(|_| Code::INVALID_IMAGE)?;
        module.put(sim.load_module(current(), &text).map_err(|refusal| refusal.code)?)
    }

    /// Unloads a module.
    fn cuModuleUnload(module: Handle) |sim| {
        sim.unload_module(module)
    }

    /// A kernel of a module by name.
    fn cuModuleGetFunction(function: Out<Handle>, module: Handle, name: Text) |sim| {
        function.put(sim.function(module, name.text()?)?)
    }

    /// How many kernels a module has.
    fn cuModuleGetFunctionCount(count: Out<u32>, module: Handle) |sim| {
        let kernels = sim.state().modules.get(module)?.header.entries.len();
        count.put(kernels as u32)
    }

    /// When kernels are loaded: at once.
    fn cuModuleGetLoadingMode(mode: Out<u32>) |_| {
        mode.put(1)
    }

    /// Address and bytes of a variable of a module.
    fn cuModuleGetGlobal_v2(address: Out<u64>, bytes: Out<usize>, module: Handle, name: Text) |sim| {
        let (at, length) = sim.global(module, name.text()?)?;
        address.put_if_wanted(at);
        bytes.put_if_wanted(length as usize);
        Ok(())
    }
}
