// SPDX-License-Identifier: Apache-2.0
//! The parts of tensorlease.h and dlpack.h that the test needs, in Rust, and the wrappers that a Rust program would write.
//! Dropping a wrapper gives its object back.
#![allow(dead_code)]

use std::ffi::{c_char, c_int, c_void, CStr, CString};
use std::marker::PhantomData;
use std::mem::{forget, size_of};
use std::ptr::{null, null_mut};

#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DLDevice {
    pub device_type: i32,
    pub device_id: i32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DLDataType {
    pub code: u8,
    pub bits: u8,
    pub lanes: u16,
}

#[repr(C)]
pub struct DLTensor {
    pub data: *mut c_void,
    pub device: DLDevice,
    pub ndim: i32,
    pub dtype: DLDataType,
    pub shape: *mut i64,
    pub strides: *mut i64,
    pub byte_offset: u64,
}

#[repr(C)]
pub struct DLPackVersion {
    pub major: u32,
    pub minor: u32,
}

#[repr(C)]
pub struct DLManagedTensorVersioned {
    pub version: DLPackVersion,
    pub manager_ctx: *mut c_void,
    pub deleter: Option<unsafe extern "C" fn(*mut DLManagedTensorVersioned)>,
    pub flags: u64,
    pub dl_tensor: DLTensor,
}

pub const READ_ONLY: u64 = 1;
pub const CPU: DLDevice = DLDevice {
    device_type: 1,
    device_id: 0,
};
pub const UINT8: DLDataType = DLDataType {
    code: 1,
    bits: 8,
    lanes: 1,
};
pub const FLOAT32: DLDataType = DLDataType {
    code: 2,
    bits: 32,
    lanes: 1,
};

#[repr(C)]
pub struct ConnectOptions {
    pub size: usize,
    pub address: *const c_char,
    pub flags: u32,
    pub reserved: u32,
    pub timeout_ns: i64,
    pub namespace_name: *const c_char,
    pub label: *const c_char,
}

#[repr(C)]
pub struct Spec {
    pub size: usize,
    pub shape: *const i64,
    pub ndim: i32,
    pub dtype: DLDataType,
    pub dlpack_flags: u64,
    pub timeout_ns: i64,
    pub device: DLDevice,
    pub ttl_ns: i64,
    pub lifetime: u32,
    pub reserved: u32,
}

#[repr(C)]
pub struct PutOptions {
    pub size: usize,
    pub metadata: *const c_void,
    pub metadata_size: usize,
    pub dlpack_flags: u64,
    pub timeout_ns: i64,
    pub flags: u32,
    pub lifetime: u32,
    pub stream: isize,
    pub ttl_ns: i64,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub enum Mode {
    Read = 0,
    CopyOnWrite = 1,
}

#[repr(C)]
pub struct GetOptions {
    pub size: usize,
    pub timeout_ns: i64,
    pub newer_than: u64,
    pub spin_ns: i64,
    pub mode: Mode,
    pub flags: u32,
    pub stream: isize,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct ClientInfo {
    pub size: usize,
    pub id: u64,
    pub pid: u32,
    pub uid: u32,
    pub gid: u32,
    pub drafts: u32,
    pub leases: u64,
    pub tensors_held: u64,
    pub bytes_held: u64,
    pub label: [c_char; 16],
}

type Visit = unsafe extern "C" fn(*const ClientInfo, *mut c_void) -> c_int;
type Managed = DLManagedTensorVersioned;

#[repr(C)]
pub struct TlClient([u8; 0]);
#[repr(C)]
pub struct TlDraft([u8; 0]);

#[link(name = "tensorlease")]
extern "C" {
    fn tl_version() -> *const c_char;
    fn tl_last_error() -> *const c_char;
    fn tl_connect(options: *const ConnectOptions, out: *mut *mut TlClient) -> c_int;
    fn tl_close(client: *mut TlClient) -> c_int;
    fn tl_create(
        client: *mut TlClient,
        name: *const c_char,
        spec: *const Spec,
        out: *mut *mut TlDraft,
    ) -> c_int;
    fn tl_draft_tensor(draft: *mut TlDraft) -> *mut DLTensor;
    fn tl_commit(draft: *mut TlDraft, version: *mut u64) -> c_int;
    fn tl_abort(draft: *mut TlDraft);
    fn tl_put(
        client: *mut TlClient,
        name: *const c_char,
        source: *const DLTensor,
        options: *const PutOptions,
        version: *mut u64,
    ) -> c_int;
    fn tl_publish(
        client: *mut TlClient,
        name: *const c_char,
        tensor: *mut Managed,
        options: *const PutOptions,
        copied: *mut bool,
        version: *mut u64,
    ) -> c_int;
    fn tl_get(
        client: *mut TlClient,
        name: *const c_char,
        options: *const GetOptions,
        out: *mut *mut Managed,
    ) -> c_int;
    fn tl_remap(held: *const Managed, mode: Mode, out: *mut *mut Managed) -> c_int;
    fn tl_delete(client: *mut TlClient, name: *const c_char) -> c_int;
    fn tl_list_clients(client: *mut TlClient, visit: Visit, context: *mut c_void) -> c_int;
}

pub fn version() -> &'static str {
    unsafe { CStr::from_ptr(tl_version()) }.to_str().unwrap()
}

/// Borrowed bytes and their meaning. The strides may be left out.
pub struct Array<'a> {
    pub data: &'a [u8],
    pub device: DLDevice,
    pub dtype: DLDataType,
    pub shape: &'a [i64],
    pub strides: Option<&'a [i64]>,
}

impl Array<'_> {
    /// Makes a tensor that may only be read, and only while the bytes are borrowed.
    pub fn tensor(&self) -> DLTensor {
        DLTensor {
            data: self.data.as_ptr().cast_mut().cast(),
            device: self.device,
            ndim: self.shape.len() as i32,
            dtype: self.dtype,
            shape: self.shape.as_ptr().cast_mut(),
            strides: self.strides.map_or(null_mut(), |s| s.as_ptr().cast_mut()),
            byte_offset: 0,
        }
    }
}

/// An errno and the library's text about the failure.
#[derive(Debug)]
pub struct Error {
    pub errno: i32,
    pub text: String,
}

pub type Result<T> = std::result::Result<T, Error>;

fn check(r: c_int) -> Result<()> {
    if r == 0 {
        return Ok(());
    }
    let text = unsafe { CStr::from_ptr(tl_last_error()) };
    Err(Error {
        errno: -r,
        text: text.to_string_lossy().into_owned(),
    })
}

fn c(text: &str) -> CString {
    CString::new(text).unwrap()
}

/// A client, which threads may share. It is closed when it is dropped.
pub struct Client(*mut TlClient);

unsafe impl Send for Client {}
unsafe impl Sync for Client {}

impl Drop for Client {
    fn drop(&mut self) {
        unsafe { tl_close(self.0) };
    }
}

impl Client {
    pub fn connect(address: &str) -> Result<Client> {
        let address = c(address);
        let options = ConnectOptions {
            size: size_of::<ConnectOptions>(),
            address: address.as_ptr(),
            flags: 0,
            reserved: 0,
            timeout_ns: 0,
            namespace_name: null(),
            label: null(),
        };
        let mut client = null_mut();
        check(unsafe { tl_connect(&options, &mut client) })?;
        Ok(Client(client))
    }

    pub fn put(&self, name: &str, source: &Array, metadata: &[u8]) -> Result<u64> {
        let options = PutOptions {
            size: size_of::<PutOptions>(),
            metadata: metadata.as_ptr().cast(),
            metadata_size: metadata.len(),
            dlpack_flags: 0,
            timeout_ns: 0,
            flags: 0,
            lifetime: 0,
            stream: 0,
            ttl_ns: 0,
        };
        let mut version = 0;
        check(unsafe {
            tl_put(
                self.0,
                c(name).as_ptr(),
                &source.tensor(),
                &options,
                &mut version,
            )
        })?;
        Ok(version)
    }

    /// Hands the tensor over. On failure it is returned with the error.
    pub fn publish(
        &self,
        name: &str,
        tensor: Tensor,
    ) -> std::result::Result<bool, (Error, Tensor)> {
        let mut copied = false;
        let r = unsafe {
            tl_publish(
                self.0,
                c(name).as_ptr(),
                tensor.0,
                null(),
                &mut copied,
                &mut 0,
            )
        };
        match check(r) {
            Ok(()) => {
                forget(tensor); // the library has called the deleter
                Ok(copied)
            }
            Err(error) => Err((error, tensor)),
        }
    }

    pub fn create(&self, name: &str, shape: &[i64], dtype: DLDataType) -> Result<Draft<'_>> {
        let spec = Spec {
            size: size_of::<Spec>(),
            shape: shape.as_ptr(),
            ndim: shape.len() as i32,
            dtype,
            dlpack_flags: 0,
            timeout_ns: 0,
            device: CPU,
            ttl_ns: 0,
            lifetime: 0,
            reserved: 0,
        };
        let mut draft = null_mut();
        check(unsafe { tl_create(self.0, c(name).as_ptr(), &spec, &mut draft) })?;
        Ok(Draft(draft, PhantomData))
    }

    pub fn get(&self, name: &str, mode: Mode) -> Result<Tensor> {
        let options = GetOptions {
            size: size_of::<GetOptions>(),
            timeout_ns: 0,
            newer_than: 0,
            spin_ns: 0,
            mode,
            flags: 0,
            stream: 0,
        };
        let mut tensor = null_mut();
        check(unsafe { tl_get(self.0, c(name).as_ptr(), &options, &mut tensor) })?;
        Ok(Tensor(tensor))
    }

    pub fn delete(&self, name: &str) -> Result<()> {
        check(unsafe { tl_delete(self.0, c(name).as_ptr()) })
    }

    pub fn clients(&self) -> Result<Vec<ClientInfo>> {
        unsafe extern "C" fn visit(info: *const ClientInfo, context: *mut c_void) -> c_int {
            (*context.cast::<Vec<ClientInfo>>()).push(*info);
            0
        }
        let mut found: Vec<ClientInfo> = Vec::new();
        check(unsafe {
            tl_list_clients(self.0, visit, (&mut found as *mut Vec<ClientInfo>).cast())
        })?;
        Ok(found)
    }
}

/// A draft, which is aborted when it is dropped without a commit. It may not outlive its client.
pub struct Draft<'a>(*mut TlDraft, PhantomData<&'a Client>);

impl Drop for Draft<'_> {
    fn drop(&mut self) {
        unsafe { tl_abort(self.0) }
    }
}

impl Draft<'_> {
    pub fn bytes(&mut self, n: usize) -> &mut [u8] {
        unsafe { std::slice::from_raw_parts_mut((*tl_draft_tensor(self.0)).data.cast(), n) }
    }

    pub fn commit(self) -> Result<u64> {
        let (draft, mut version) = (self.0, 0);
        forget(self);
        check(unsafe { tl_commit(draft, &mut version) })?;
        Ok(version)
    }
}

/// A DLPack tensor that we own. Any thread may delete it.
#[derive(Debug)]
pub struct Tensor(pub *mut Managed);

unsafe impl Send for Tensor {}

impl Drop for Tensor {
    fn drop(&mut self) {
        unsafe {
            if let Some(deleter) = (*self.0).deleter {
                deleter(self.0)
            }
        }
    }
}

impl Tensor {
    pub fn managed(&self) -> &Managed {
        unsafe { &*self.0 }
    }

    pub fn shape(&self) -> &[i64] {
        let t = &self.managed().dl_tensor;
        unsafe { std::slice::from_raw_parts(t.shape, t.ndim as usize) }
    }

    pub fn strides(&self) -> &[i64] {
        let t = &self.managed().dl_tensor;
        unsafe { std::slice::from_raw_parts(t.strides, t.ndim as usize) }
    }

    pub fn nbytes(&self) -> usize {
        let t = &self.managed().dl_tensor;
        (self.shape().iter().product::<i64>() as usize
            * t.dtype.bits as usize
            * t.dtype.lanes as usize)
            .div_ceil(8)
    }

    pub fn bytes(&self) -> &[u8] {
        let t = &self.managed().dl_tensor;
        unsafe {
            std::slice::from_raw_parts(
                t.data.cast::<u8>().add(t.byte_offset as usize),
                self.nbytes(),
            )
        }
    }

    /// Returns the bytes, or None if the tensor is read-only.
    pub fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        let t = &self.managed().dl_tensor;
        if self.managed().flags & READ_ONLY != 0 {
            return None;
        }
        Some(unsafe {
            std::slice::from_raw_parts_mut(
                t.data.cast::<u8>().add(t.byte_offset as usize),
                self.nbytes(),
            )
        })
    }

    pub fn remap(&self, mode: Mode) -> Result<Tensor> {
        let mut tensor = null_mut();
        check(unsafe { tl_remap(self.0, mode, &mut tensor) })?;
        Ok(Tensor(tensor))
    }
}
