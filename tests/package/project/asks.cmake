# SPDX-License-Identifier: Apache-2.0
# cmake -DASKED=0.2 -DFILE=.../tensorleaseConfigVersion.cmake -P asks.cmake: would find_package(tensorlease 0.2) take it?
string(REPLACE "." ";" parts "${ASKED}")
list(LENGTH parts PACKAGE_FIND_VERSION_COUNT)
list(GET parts 0 PACKAGE_FIND_VERSION_MAJOR)
if(PACKAGE_FIND_VERSION_COUNT GREATER 1)
  list(GET parts 1 PACKAGE_FIND_VERSION_MINOR)
endif()
set(PACKAGE_FIND_VERSION "${ASKED}")
include("${FILE}")
if(NOT PACKAGE_VERSION_COMPATIBLE)
  message(FATAL_ERROR "${PACKAGE_VERSION} is not what ${ASKED} asks for")
endif()
