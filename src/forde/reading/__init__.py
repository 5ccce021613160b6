"""What every reader of files from elsewhere asks first: is it a file, is there memory for it, is it an image."""
