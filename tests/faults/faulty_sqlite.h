// SQLite whose n-th file operation fails: a layer below every connection that is opened while it lives.
//
// Opening, reading, writing, cutting, syncing and deleting count. A failing write writes its first half. Syncs do not reach the
// disk: this is about errors, not about power cuts.
#pragma once

#include <sqlite3.h>

#include <cstring>
#include <string>

namespace kvartet {

struct SqliteFault {
  long nth = 0;          // counted from 1; 0: nothing fails
  bool lasting = false;  // every operation after the n-th fails too
  bool full = false;     // what writes fail with: no space instead of an error of the device
};

class FaultySqlite {
 public:
  FaultySqlite() : real_(sqlite3_vfs_find(nullptr)), layer_(*real_) {
    layer_.iVersion = 1;
    layer_.zName = "kvartet-faulty";
    layer_.pAppData = this;
    layer_.szOsFile = static_cast<int>(sizeof(File)) + real_->szOsFile;
    layer_.xOpen = open;
    layer_.xDelete = remove;
    layer_.xAccess = [](sqlite3_vfs* v, const char* name, int flags, int* out) {
      return self(v).real_->xAccess(self(v).real_, name, flags, out);
    };
    layer_.xFullPathname = [](sqlite3_vfs* v, const char* name, int size, char* out) {
      return self(v).real_->xFullPathname(self(v).real_, name, size, out);
    };
    sqlite3_vfs_register(&layer_, 1);
  }
  FaultySqlite(const FaultySqlite&) = delete;
  FaultySqlite& operator=(const FaultySqlite&) = delete;
  ~FaultySqlite() {
    sqlite3_vfs_unregister(&layer_);
    sqlite3_vfs_register(real_, 1);
  }

  void arm(const SqliteFault& fault) {
    fault_ = fault;
    operations_ = 0;
    failed_ = false;
  }
  bool failed() const { return failed_; }

 private:
  struct File {
    sqlite3_file base;
    FaultySqlite* layer;
    sqlite3_file* real() { return reinterpret_cast<sqlite3_file*>(this + 1); }
  };

  static FaultySqlite& self(sqlite3_vfs* v) { return *static_cast<FaultySqlite*>(v->pAppData); }
  static File& file(sqlite3_file* f) { return *reinterpret_cast<File*>(f); }

  bool fails() {
    ++operations_;
    const bool now = fault_.nth > 0 && (operations_ == fault_.nth || (fault_.lasting && operations_ > fault_.nth));
    failed_ = failed_ || now;
    return now;
  }
  int no_write(int otherwise) const { return fault_.full ? SQLITE_FULL : otherwise; }

  static int open(sqlite3_vfs* v, const char* name, sqlite3_file* f, int flags, int* out_flags) {
    f->pMethods = nullptr;
    if (self(v).fails()) return SQLITE_CANTOPEN;
    File& mine = file(f);
    mine.layer = &self(v);
    std::memset(mine.real(), 0, static_cast<std::size_t>(self(v).real_->szOsFile));
    const int code = self(v).real_->xOpen(self(v).real_, name, mine.real(), flags, out_flags);
    if (mine.real()->pMethods != nullptr) f->pMethods = &methods();
    return code;
  }
  static int remove(sqlite3_vfs* v, const char* name, int /*sync*/) {
    if (self(v).fails()) return SQLITE_IOERR_DELETE;
    return self(v).real_->xDelete(self(v).real_, name, 0);
  }
  static int write(sqlite3_file* f, const void* bytes, int size, sqlite3_int64 offset) {
    sqlite3_file* real = file(f).real();
    if (!file(f).layer->fails()) return real->pMethods->xWrite(real, bytes, size, offset);
    real->pMethods->xWrite(real, bytes, size / 2, offset);
    return file(f).layer->no_write(SQLITE_IOERR_WRITE);
  }
  static int read(sqlite3_file* f, void* bytes, int size, sqlite3_int64 offset) {
    if (file(f).layer->fails()) return SQLITE_IOERR_READ;
    return file(f).real()->pMethods->xRead(file(f).real(), bytes, size, offset);
  }
  static int truncate(sqlite3_file* f, sqlite3_int64 size) {
    if (file(f).layer->fails()) return SQLITE_IOERR_TRUNCATE;
    return file(f).real()->pMethods->xTruncate(file(f).real(), size);
  }
  static int sync(sqlite3_file* f, int /*flags*/) {
    return file(f).layer->fails() ? file(f).layer->no_write(SQLITE_IOERR_FSYNC) : SQLITE_OK;
  }

  static const sqlite3_io_methods& methods() {
    static const sqlite3_io_methods all = [] {
      sqlite3_io_methods m = {};
      m.iVersion = 1;
      m.xClose = [](sqlite3_file* f) { return file(f).real()->pMethods->xClose(file(f).real()); };
      m.xRead = read;
      m.xWrite = write;
      m.xTruncate = truncate;
      m.xSync = sync;
      m.xFileSize = [](sqlite3_file* f, sqlite3_int64* size) {
        return file(f).real()->pMethods->xFileSize(file(f).real(), size);
      };
      m.xLock = [](sqlite3_file* f, int kind) { return file(f).real()->pMethods->xLock(file(f).real(), kind); };
      m.xUnlock = [](sqlite3_file* f, int kind) { return file(f).real()->pMethods->xUnlock(file(f).real(), kind); };
      m.xCheckReservedLock = [](sqlite3_file* f, int* out) {
        return file(f).real()->pMethods->xCheckReservedLock(file(f).real(), out);
      };
      m.xFileControl = [](sqlite3_file* f, int what, void* argument) {
        return file(f).real()->pMethods->xFileControl(file(f).real(), what, argument);
      };
      m.xSectorSize = [](sqlite3_file* f) { return file(f).real()->pMethods->xSectorSize(file(f).real()); };
      m.xDeviceCharacteristics = [](sqlite3_file*) { return 0; };  // nothing is atomic, so every step is taken
      return m;
    }();
    return all;
  }

  sqlite3_vfs* real_;
  sqlite3_vfs layer_;
  SqliteFault fault_;
  long operations_ = 0;
  bool failed_ = false;
};

}  // namespace kvartet
