// SPDX-License-Identifier: Apache-2.0
//! A Rust program that uses the library and checks the results. rust_test.py runs it, as `interop ADDRESS`, beside a Python
//! process that reads the tensors that it publishes.
mod tensorlease;

use std::panic::{catch_unwind, AssertUnwindSafe};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use tensorlease::*;

/// Counts the leases that this process holds, as the daemon sees them.
fn leases(client: &Client) -> u64 {
    let me = std::process::id();
    client
        .clients()
        .unwrap()
        .iter()
        .filter(|info| info.pid == me)
        .map(|info| info.leases)
        .sum()
}

fn array<'a>(data: &'a [u8], shape: &'a [i64], dtype: DLDataType) -> Array<'a> {
    Array {
        data,
        device: CPU,
        dtype,
        shape,
        strides: None,
    }
}

fn counting(n: usize) -> Vec<u8> {
    (0..n).map(|i| (i * 7 % 251) as u8).collect()
}

fn structs_have_the_abis_layout() {
    assert_eq!(std::mem::size_of::<DLTensor>(), 48);
    assert_eq!(std::mem::size_of::<DLManagedTensorVersioned>(), 80);
    assert_eq!(
        std::mem::offset_of!(DLManagedTensorVersioned, dl_tensor),
        32
    );
    assert_eq!(std::mem::offset_of!(DLTensor, byte_offset), 40);
}

fn put_and_get(client: &Client) {
    let data = counting(96);
    let version = client
        .put("rust/put", &array(&data, &[2, 3, 4], FLOAT32), b"from Rust")
        .unwrap();
    assert!(version >= 1);
    let tensor = client.get("rust/put", Mode::Read).unwrap();
    let managed = tensor.managed();
    assert_eq!((managed.version.major, managed.flags), (1, READ_ONLY));
    assert_eq!(
        (managed.dl_tensor.device, managed.dl_tensor.dtype),
        (CPU, FLOAT32)
    );
    assert_eq!(
        (
            managed.dl_tensor.byte_offset,
            managed.dl_tensor.data as usize % 256
        ),
        (0, 0)
    );
    assert_eq!(
        (tensor.shape(), tensor.strides()),
        (&[2, 3, 4][..], &[12, 4, 1][..])
    );
    assert_eq!(tensor.bytes(), data);

    // the array is transposed, but its copy is in C order
    let transposed = Array {
        strides: Some(&[1, 4]),
        ..array(&data, &[4, 3], UINT8)
    };
    client.put("rust/transposed", &transposed, b"").unwrap();
    let expected: Vec<u8> = (0..12).map(|i| data[i / 3 + i % 3 * 4]).collect();
    assert_eq!(
        client.get("rust/transposed", Mode::Read).unwrap().bytes(),
        expected
    );
}

fn errors_have_words(client: &Client) {
    let error = client.get("rust/nobody", Mode::Read).err().unwrap();
    assert!(
        error.errno == 2 && error.text.contains("rust/nobody"),
        "{error:?}"
    );
    let error = client.create("rust//wrong", &[1], UINT8).err().unwrap();
    assert!(
        error.errno == 22 && error.text.contains("rust//wrong"),
        "{error:?}"
    );
    let error = client
        .create("rust/large", &[1 << 50], UINT8)
        .err()
        .unwrap();
    assert!(error.errno == 28 && !error.text.is_empty(), "{error:?}");
    let rocm = Array {
        device: DLDevice {
            device_type: 10,
            device_id: 0,
        },
        ..array(&[0], &[1], UINT8)
    };
    let error = client.put("rust/rocm", &rocm, b"").err().unwrap();
    assert!(
        error.errno == 95 && error.text.contains("device_type"),
        "{error:?}"
    );
    // each thread has a text of its own
    let error = client.delete("rust/nobody").err().unwrap();
    let other = thread::scope(|s| {
        s.spawn(|| client.delete("rust//wrong").err().unwrap())
            .join()
            .unwrap()
    });
    assert!(error.text.contains("rust/nobody") && other.text.contains("rust//wrong"));
    let error = Client::connect("/nowhere/socket").err().unwrap();
    assert!(error.text.contains("/nowhere/socket"), "{error:?}");
}

fn drafts_are_committed_or_aborted(client: &Client) {
    let mut draft = client.create("rust/draft", &[1000, 1000], UINT8).unwrap();
    draft.bytes(1_000_000).copy_from_slice(&counting(1_000_000));
    assert!(client.get("rust/draft", Mode::Read).is_err());
    assert!(draft.commit().unwrap() >= 1);
    assert_eq!(
        client.get("rust/draft", Mode::Read).unwrap().bytes(),
        counting(1_000_000)
    );
    drop(client.create("rust/dropped", &[10], UINT8).unwrap());
    assert_eq!(
        client.get("rust/dropped", Mode::Read).err().unwrap().errno,
        2
    );
}

static DELETED: AtomicUsize = AtomicUsize::new(0);

struct Owned {
    managed: DLManagedTensorVersioned,
    data: Vec<u8>,
    shape: [i64; 1],
}

/// Makes a tensor in this program's memory, which its deleter frees.
fn owned(n: usize) -> Tensor {
    unsafe extern "C" fn delete(tensor: *mut DLManagedTensorVersioned) {
        DELETED.fetch_add(1, Ordering::SeqCst);
        drop(Box::from_raw((*tensor).manager_ctx.cast::<Owned>()));
    }
    let mut owned = Box::new(Owned {
        managed: DLManagedTensorVersioned {
            version: DLPackVersion { major: 1, minor: 3 },
            manager_ctx: null_mut(),
            deleter: Some(delete),
            flags: 0,
            dl_tensor: array(&[], &[], UINT8).tensor(),
        },
        data: counting(n),
        shape: [n as i64],
    });
    owned.managed.dl_tensor = array(&owned.data, &owned.shape, UINT8).tensor();
    let owned = Box::into_raw(owned);
    unsafe {
        (*owned).managed.manager_ctx = owned.cast();
        Tensor(&raw mut (*owned).managed)
    }
}

fn deleters_are_called_once(client: &Client) {
    drop(owned(10));
    assert_eq!(DELETED.swap(0, Ordering::SeqCst), 1);
    assert!(client.publish("rust/published", owned(5000)).unwrap());
    assert_eq!(DELETED.swap(0, Ordering::SeqCst), 1);
    assert_eq!(
        client.get("rust/published", Mode::Read).unwrap().bytes(),
        counting(5000)
    );
    let (error, tensor) = client
        .publish("rust//published", owned(5000))
        .err()
        .unwrap();
    assert_eq!((error.errno, DELETED.load(Ordering::SeqCst)), (22, 0)); // the tensor is still ours
    assert_eq!(tensor.bytes(), counting(5000));
    drop(tensor);
    assert_eq!(DELETED.swap(0, Ordering::SeqCst), 1);
    // a tensor that was got is published under another name without a copy
    let tensor = client.get("rust/published", Mode::Read).unwrap();
    assert!(!client.publish("rust/linked", tensor).unwrap());
    assert_eq!(leases(client), 0);
}

fn drop_releases_once(client: &Client) {
    let one = client.get("rust/put", Mode::Read).unwrap();
    let two = client.get("rust/put", Mode::Read).unwrap();
    assert_eq!(leases(client), 2);
    drop(one);
    assert_eq!(leases(client), 1);
    let moved = Box::new(two);
    let unwound = catch_unwind(AssertUnwindSafe(move || {
        assert_eq!(moved.shape()[0], 2);
        std::panic::resume_unwind(Box::new("on purpose"));
    }));
    assert!(unwound.is_err());
    assert_eq!(leases(client), 0);
}

fn copy_on_write_is_private(client: &Client) {
    let mut shared = client.get("rust/published", Mode::Read).unwrap();
    assert!(shared.bytes_mut().is_none());
    let mut own = shared.remap(Mode::CopyOnWrite).unwrap();
    own.bytes_mut().unwrap().fill(0xff);
    assert_eq!(shared.bytes(), counting(5000));
    drop(shared);
    assert!(own.bytes().iter().all(|&byte| byte == 0xff));
    assert_eq!(leases(client), 1);
}

fn any_thread_drops(client: &Client) {
    let (give, take) = channel::<Tensor>();
    let take = Arc::new(std::sync::Mutex::new(take));
    thread::scope(|s| {
        for _ in 0..4 {
            let take = take.clone();
            s.spawn(move || loop {
                let next = take.lock().unwrap().recv();
                match next {
                    Ok(tensor) => assert_eq!(tensor.bytes()[..96], counting(5000)[..96]),
                    Err(_) => break,
                }
            });
        }
        for _ in 0..4 {
            let give = give.clone();
            s.spawn(move || {
                for i in 0..500 {
                    let mode = if i % 50 == 0 {
                        Mode::CopyOnWrite
                    } else {
                        Mode::Read
                    };
                    let name = ["rust/put", "rust/published", "rust/linked"][i % 3];
                    let tensor = client.get(name, mode).unwrap();
                    give.send(tensor).unwrap();
                }
            });
        }
        drop(give);
    });
    assert_eq!(leases(client), 0);
}

fn tensors_outlive_their_client(address: &str, observer: &Client) {
    let client = Client::connect(address).unwrap();
    let tensor = client.get("rust/published", Mode::Read).unwrap();
    drop(client);
    assert_eq!(tensor.bytes(), counting(5000));
    assert_eq!(leases(observer), 1);
    thread::spawn(move || drop(tensor)).join().unwrap();
    // Its connection ends with it, and the daemon sees that a little later.
    for _ in 0..60000 {
        if leases(observer) == 0 {
            return;
        }
        thread::sleep(Duration::from_millis(1));
    }
    panic!("the lease of a closed client stays");
}

fn others_tensors_are_read(client: &Client) {
    let tensor = client.get("rust/from-python", Mode::Read).unwrap();
    assert_eq!(tensor.shape(), [3, 5]);
    assert_eq!(
        tensor.managed().dl_tensor.dtype,
        DLDataType {
            code: 0,
            bits: 16,
            lanes: 1
        }
    );
    let expected: Vec<u8> = (0..15i16).flat_map(|i| (i * 1000).to_le_bytes()).collect();
    assert_eq!(tensor.bytes(), expected);
}

fn main() {
    let address = std::env::args().nth(1).expect("the daemon's address");
    let client = Client::connect(&address).unwrap();
    structs_have_the_abis_layout();
    put_and_get(&client);
    errors_have_words(&client);
    drafts_are_committed_or_aborted(&client);
    deleters_are_called_once(&client);
    drop_releases_once(&client);
    copy_on_write_is_private(&client);
    assert_eq!(leases(&client), 0);
    any_thread_drops(&client);
    tensors_outlive_their_client(&address, &client);
    others_tensors_are_read(&client);
    assert_eq!(leases(&client), 0);
    println!("{}", version());
}
