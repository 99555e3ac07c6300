//! Memory of GPUs and pinned memory of the host: taken, given back, asked about.

use serde_json::json;

use super::code::{Answer, Code};
use super::fault::Operation;
use super::handles::Handle;
use super::mapping::Mapping;
use super::sim::Sim;
use super::space::{Allocation, Owner};

impl Sim {
    /// Allocates device memory on the GPU of context `current`; gives its address.
    ///
    /// # Errors
    /// `INVALID_VALUE` for 0 bytes, `OUT_OF_MEMORY`, the errors of every call.
    pub(crate) fn allocate(&self, current: Handle, bytes: u64, managed: bool) -> Answer<u64> {
        let mut state = self.state();
        let device = state.device_of(current)?;
        self.gate(&mut state, device, Operation::Alloc)?;
        let on = state.device_mut(device)?;
        let charge = on.ledger.reserve(bytes).inspect_err(|_| {
            let ledger = &on.ledger;
            let fields =
                json!({ "device": device, "bytes": bytes, "free": ledger.free(), "live_bytes": ledger.live_bytes });
            self.log.write("refused", fields);
        })?;
        let pages = match usize::try_from(bytes).map_err(std::io::Error::other).and_then(Mapping::new) {
            Ok(pages) => pages,
            Err(error) => {
                on.ledger.release(bytes, charge);
                self.log.write("host_refused", json!({ "device": device, "bytes": bytes, "why": error.to_string() }));
                return Err(Code::OUT_OF_MEMORY);
            }
        };
        if let Some(byte) = self.settings.fill {
            pages.fill(byte);
        }
        let start = pages.start() as u64;
        let ledger = &on.ledger;
        let fields = json!({
            "device": device, "address": format!("{start:#x}"), "bytes": bytes, "charged": charge,
            "live_bytes": ledger.live_bytes, "peak_bytes": ledger.peak_bytes, "charged_bytes": ledger.charged_bytes,
        });
        self.log.write("alloc", fields);
        let owner = if managed { Owner::Managed(device) } else { Owner::Device(device) };
        state.space.insert(Allocation { start, bytes, charge, owner, _pages: Some(pages) });
        Ok(start)
    }

    /// Gives device memory back; address 0 is nothing.
    ///
    /// # Errors
    /// `INVALID_VALUE` for an address where no device allocation begins.
    pub(crate) fn free(&self, current: Handle, start: u64) -> Answer {
        let mut state = self.state();
        let device = state.device_of(current)?;
        self.gate(&mut state, device, Operation::Free)?;
        if start == 0 {
            return Ok(());
        }
        let found = state.space.find(start).filter(|allocation| allocation.start == start);
        let Some(Owner::Device(owner) | Owner::Managed(owner)) = found.map(|allocation| allocation.owner) else {
            self.log.write("bad_free", json!({ "device": device, "address": format!("{start:#x}") }));
            return Err(Code::INVALID_VALUE);
        };
        let allocation = state.space.remove(start).ok_or(Code::INVALID_VALUE)?;
        let ledger = &mut state.device_mut(owner)?.ledger;
        ledger.release(allocation.bytes, allocation.charge);
        let fields = json!({
            "device": owner, "address": format!("{start:#x}"), "bytes": allocation.bytes, "live_bytes": ledger.live_bytes,
        });
        self.log.write("free", fields);
        Ok(())
    }

    /// Free and total bytes of the GPU of context `current`.
    ///
    /// # Errors
    /// The errors of every call.
    pub(crate) fn memory_info(&self, current: Handle) -> Answer<(u64, u64)> {
        let mut state = self.state();
        let device = state.device_of(current)?;
        self.gate(&mut state, device, Operation::Info)?;
        let ledger = &state.device(device)?.ledger;
        Ok((ledger.free(), ledger.total))
    }

    /// Allocates pinned memory of the host.
    ///
    /// # Errors
    /// `INVALID_VALUE` for 0 bytes, `OUT_OF_MEMORY`, the errors of every call.
    pub(crate) fn allocate_host(&self, current: Handle, bytes: u64) -> Answer<u64> {
        let mut state = self.state();
        let device = state.device_of(current)?;
        self.gate(&mut state, device, Operation::AllocHost)?;
        if bytes == 0 {
            return Err(Code::INVALID_VALUE);
        }
        let pages = usize::try_from(bytes).map_err(std::io::Error::other).and_then(Mapping::new);
        let pages = pages.map_err(|_| Code::OUT_OF_MEMORY)?;
        let start = pages.start() as u64;
        state.space.insert(Allocation { start, bytes, charge: 0, owner: Owner::Pinned, _pages: Some(pages) });
        let host = &mut state.host;
        host.live_bytes += bytes;
        host.live += 1;
        host.allocations += 1;
        host.peak_bytes = host.peak_bytes.max(host.live_bytes);
        let fields = json!({ "address": format!("{start:#x}"), "bytes": bytes, "live_bytes": host.live_bytes });
        self.log.write("alloc_host", fields);
        Ok(start)
    }

    /// Gives pinned memory back.
    ///
    /// # Errors
    /// `INVALID_VALUE` for an address where no pinned allocation begins; the sticky error, but the memory is given
    /// back all the same, as it belongs to the host.
    pub(crate) fn free_host(&self, current: Handle, start: u64) -> Answer {
        let mut state = self.state();
        let found = state.space.find(start).filter(|found| found.start == start && found.owner == Owner::Pinned);
        let bytes = found.map(|allocation| allocation.bytes).ok_or(Code::INVALID_VALUE)?;
        state.space.remove(start);
        state.host.live_bytes -= bytes;
        state.host.live -= 1;
        self.log.write("free_host", json!({ "address": format!("{start:#x}"), "bytes": bytes }));
        let poison = state.device_of(current).ok().and_then(|device| state.devices[device].poison);
        poison.map_or(Ok(()), Err)
    }

    /// Makes `bytes` of the program's own memory reachable for kernels.
    ///
    /// # Errors
    /// `INVALID_VALUE` for 0 bytes; `HOST_MEMORY_ALREADY_REGISTERED` (712).
    pub(crate) fn register_host(&self, current: Handle, start: u64, bytes: u64) -> Answer {
        let mut state = self.state();
        let device = state.device_of(current)?;
        if let Some(code) = state.device(device)?.poison {
            return Err(code);
        }
        if start == 0 || bytes == 0 {
            return Err(Code::INVALID_VALUE);
        }
        if state.space.find(start).is_some() || state.space.find(start + bytes - 1).is_some() {
            return Err(Code(712));
        }
        state.space.insert(Allocation { start, bytes, charge: 0, owner: Owner::Registered, _pages: None });
        Ok(())
    }

    /// Ends what [`Sim::register_host`] began.
    ///
    /// # Errors
    /// `HOST_MEMORY_NOT_REGISTERED` (713).
    pub(crate) fn unregister_host(&self, start: u64) -> Answer {
        let mut state = self.state();
        let found = state.space.find(start).filter(|found| found.start == start && found.owner == Owner::Registered);
        found.map(|_| ()).ok_or(Code(713))?;
        state.space.remove(start);
        Ok(())
    }

    /// The allocation around an address: its start, its bytes and whose it is.
    ///
    /// # Errors
    /// `INVALID_VALUE` for an address in no allocation.
    pub(crate) fn range_of(&self, address: u64) -> Answer<(u64, u64, Owner)> {
        let state = self.state();
        let allocation = state.space.find(address).ok_or(Code::INVALID_VALUE)?;
        Ok((allocation.start, allocation.bytes, allocation.owner))
    }
}
