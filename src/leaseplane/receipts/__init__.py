"""Receipts: signed statements of one answer each, which anyone can check without asking the plane.

`profile` is what a receipt may say, `canonical` what is hashed, `issue` writes receipts, `verify`
reads them, `jwk` and `base64url` are the two encodings both need, and `keyring` is the only module
here that touches a disk.
"""
