"""Worker environments with torch, and the code that runs only inside them."""
